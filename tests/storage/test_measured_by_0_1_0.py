"""Measured records of version 0.1.0 are found and read by every later version.

`measured_by_0_1_0/records/` was written by that version and is never written again.
"""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from profiler.config.trials import identity
from profiler.config.trials.identity import spec_from_mapping, spec_to_mapping, trial_id
from profiler.domain.runs.outcome import Status, Versions
from profiler.domain.trials.trial import SPEC_KEYS, Backend, TrialSpec, Tuning
from profiler.storage.stores.record_store import RecordStore

FOLDER = Path(__file__).parent / "measured_by_0_1_0"
HARDWARE = "NVIDIA H100 80GB HBM3, 84913225728 bytes, driver 570.148.08"
VERSIONS = Versions(
    torch="2.13.0", trl="1.16.0", transformers="5.23.0", peft="0.21.2", bitsandbytes="0.50.2", profiler="0.1.0"
)
FULL = TrialSpec(backend=Backend.CUDA, gpu=None, model="qwen2.5-0.5b")
CAPPED = TrialSpec(
    backend=Backend.CUDA,
    gpu="a100-40gb",
    model="qwen2.5-7b",
    tuning=Tuning.LORA,
    lora_rank=16,
    lora_alpha=32,
    lora_target_modules=("all-linear",),
)
NAMES = {"25b1c2651e3cc16c": FULL, "d7b4bbd4857f4adf": CAPPED}
"""Never to be changed: a rented card was paid for what is stored under such names."""

KEYS = (
    *("backend", "gpu", "model", "weights", "dataset", "tuning", "lora_rank", "lora_alpha", "lora_target_modules"),
    *("optim", "num_generations", "max_prompt_length", "max_completion_length", "lengths"),
    *("per_device_train_batch_size", "gradient_accumulation_steps", "steps_per_generation", "gradient_checkpointing"),
    *("beta", "attn_implementation", "dtype", "bf16", "logprobs", "rollout", "steps", "alloc_conf", "seed"),
)
"""Of a trial of version 0.1.0."""


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("profiler", ["0.1.0", "0.2.0", "7.0"])
def test_a_measured_trial_keeps_its_name(name, profiler):
    assert trial_id(NAMES[name], replace(VERSIONS, profiler=profiler), hardware=HARDWARE) == name


@pytest.mark.parametrize("name", NAMES)
def test_its_record_is_read(tmp_path, name):
    shutil.copytree(FOLDER, tmp_path, dirs_exist_ok=True)
    lines = []
    record = RecordStore(tmp_path, notify=lines.append).find(name)
    assert record is not None
    assert lines == []
    assert (record.spec, record.versions) == (NAMES[name], VERSIONS)
    assert record.outcome.status in (Status.OK, Status.OOM)
    assert len(record.outcome.measured.step_peaks) == 2


def test_what_it_was_measured_with_is_part_of_the_name():
    others = [
        trial_id(FULL, replace(VERSIONS, torch="2.14.0"), hardware=HARDWARE),
        trial_id(FULL, VERSIONS, hardware=HARDWARE.replace("570", "580")),
        trial_id(replace(FULL, seed=1), VERSIONS, hardware=HARDWARE),
        trial_id(FULL, VERSIONS, hardware=HARDWARE, content={"model": "0123456789abcdef"}),
    ]
    assert len({*others, *NAMES}) == len(others) + len(NAMES)


def test_a_change_of_the_simulation_renames_simulated_trials_only(monkeypatch):
    simulated = replace(FULL, backend=Backend.SIMULATED, gpu="h100-80gb")
    before = [trial_id(spec, VERSIONS, hardware=HARDWARE) for spec in (FULL, replace(FULL, backend=Backend.CPU))]
    earlier = trial_id(simulated, VERSIONS)
    monkeypatch.setattr(identity, "SIMULATION_RESULTS_VERSION", identity.SIMULATION_RESULTS_VERSION + 1)
    after = [trial_id(spec, VERSIONS, hardware=HARDWARE) for spec in (FULL, replace(FULL, backend=Backend.CPU))]
    assert before == after
    assert trial_id(simulated, VERSIONS) != earlier


def test_who_adds_a_key_says_what_earlier_trials_had():
    # Or every record that is there is set aside, and every trial has another name.
    assert set(SPEC_KEYS) - set(identity.ADDED_KEYS) == set(KEYS)
    for name, spec in NAMES.items():
        stored = json.loads((FOLDER / "records" / f"{name}.json").read_text())["record"]["spec"]
        assert spec_from_mapping(stored) == spec


def test_an_added_key_changes_no_name_at_the_value_from_before(monkeypatch):
    """As if `seed` had been added: the names are those of mappings without it."""
    monkeypatch.setattr(identity, "ADDED_KEYS", {**identity.ADDED_KEYS, "seed": 0})
    values = spec_to_mapping(FULL)
    assert values.pop("seed") == 0
    assert spec_from_mapping(values) == FULL
    name = trial_id(FULL, VERSIONS, hardware=HARDWARE)
    monkeypatch.setattr(identity, "spec_to_mapping", lambda _: values)
    assert trial_id(FULL, VERSIONS, hardware=HARDWARE) == name
    monkeypatch.undo()
    assert name not in NAMES
    monkeypatch.setattr(identity, "ADDED_KEYS", {**identity.ADDED_KEYS, "seed": 1})
    assert trial_id(FULL, VERSIONS, hardware=HARDWARE) == "25b1c2651e3cc16c"
