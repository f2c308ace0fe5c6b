"""What the documents say of the kept trials with vLLM is what their tables say."""

from pathlib import Path

import pandas as pd
import pytest

ROOT = Path(__file__).parents[1]
KEPT = ROOT / "results" / "reference" / "vllm"
KEYS = ["tuning", "vllm_enable_sleep_mode", "vllm_gpu_memory_utilization"]
TRAINING = ["score", "forward", "backward", "optimizer"]


@pytest.fixture(scope="module")
def phases() -> pd.DataFrame:
    """Emulated and simulated peaks of each phase, one row per workload and phase."""
    runs = pd.read_parquet(KEPT / "runs.parquet")
    assert set(runs.status) == {"ok"}
    both = pd.read_parquet(KEPT / "phases.parquet").merge(runs[["trial_id", "backend", *KEYS]], on="trial_id")
    emulated, simulated = (both[both.backend == name] for name in ("emulated", "simulated"))
    joined = emulated.merge(simulated, on=[*KEYS, "phase"], suffixes=("_emulated", "_simulated"))
    joined["error"] = joined.peak_allocated_bytes_simulated / joined.peak_allocated_bytes_emulated * 100 - 100
    return joined


def _largest(phases: pd.DataFrame, *, asleep: bool, names: list[str]) -> float:
    """Return the largest error of the simulation over some phases, in percent."""
    chosen = phases[(phases.vllm_enable_sleep_mode == asleep) & phases.phase.isin(names)]
    return float(chosen.error.abs().max())


def test_each_workload_is_kept_emulated_and_simulated(phases: pd.DataFrame) -> None:
    assert len(phases.groupby(KEYS)) == 8
    assert len(phases) == 8 * 7


def test_evidence_has_the_errors_of_the_kept_trials(phases: pd.DataFrame) -> None:
    text = " ".join((ROOT / "docs" / "evidence.md").read_text(encoding="utf-8").split())
    rollout = max(_largest(phases, asleep=asleep, names=["rollout"]) for asleep in (False, True))
    asleep, awake = (_largest(phases, asleep=state, names=TRAINING) for state in (True, False))
    assert f"at most {rollout:.1f} % in the rollout, {awake:.1f} % in training next to an engine that is awake" in text
    assert f"and {asleep:.1f} % next to one that sleeps" in text


def test_training_next_to_a_sleeping_engine_needs_the_same_whatever_its_part(phases: pd.DataFrame) -> None:
    """Weights and cache are not there, so the part of the card that they fill does not matter."""
    asleep = phases[phases.vllm_enable_sleep_mode & phases.phase.isin(TRAINING)]
    for _, group in asleep.groupby(["tuning", "phase"]):
        assert group.peak_allocated_bytes_emulated.nunique() == group.peak_allocated_bytes_simulated.nunique() == 1


def test_evidence_has_the_error_of_estimated_reserved_memory() -> None:
    runs = pd.read_parquet(KEPT / "runs.parquet")
    errors = runs.estimated_peak_reserved_bytes / runs.peak_reserved_bytes * 100 - 100
    text = " ".join((ROOT / "docs" / "evidence.md").read_text(encoding="utf-8").split())
    said = f"estimated reserved memory of all 16 is {errors.min():+.1f} to {errors.max():+.1f} % off"
    assert said in text
    assert errors.abs().max() < 2
