"""`python -m maintenance.vision`: sampled trials with images, simulated and compared with the closed form.

The sample is written to `sampled.jsonl` first. An existing file is kept, so that results cannot influence the sample.
The same command continues after an interruption.

Exit codes: docs/exit_codes.md.
"""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import pandas as pd

from maintenance.samples.sampling import FIXED as FIXED_IN_EACH
from maintenance.samples.sampling import architecture_of, folder_faults, sample_trials, written_down
from maintenance.vision.page import PAGE, page
from maintenance.words import read_words
from profiler.allocator import AllocatorConfig, Trace, replay_on_card
from profiler.analytical.estimate import has_form, phase_instants
from profiler.command_line import as_command, print_line, print_text
from profiler.config.options.reading import FieldReader
from profiler.domain.cards.gpu import KNOWN_GPUS
from profiler.domain.errors import EXIT_OK, EXIT_SOME_TRIALS_FAILED, UsageError
from profiler.domain.models.builtin_models import VISION_MODELS
from profiler.domain.trials.trial import TrialSpec
from profiler.rendering.layouts.script_data import as_csv
from profiler.storage.files.atomic import write_atomically

ROWS, NAME = "rows.csv", "vision"
_WHOLE = ("trial", "simulated_allocated_bytes", "estimated_allocated_bytes")
COUNT, SEED = 8, 1617

_AXES: Mapping[str, Sequence[object]] = {
    "model": ("qwen2-vl-2b", "qwen2.5-vl-3b", "qwen2.5-vl-3b", "qwen3-vl-2b"),
    "gpu": ("h100-80gb", "a100-80gb"),
    "tuning": ("full", "lora", "lora"),
    "lora_rank": (8, 64),
    "lora_target_modules": (("all-linear",), ("all-linear",), ("q_proj", "v_proj")),
    "num_generations": (2, 4),
    "images_per_prompt": (1, 1, 2),
    "max_pixels": (65_536, 200_704, 401_408),
    "max_prompt_length": (600, 1200),
    "max_completion_length": (16, 64, 256),
    "lengths": ("ragged", "forced"),
    "per_device_train_batch_size": (2, 4),
    "gradient_accumulation_steps": (1, 2),
    "gradient_checkpointing": (True, False),
    "steps": (2,),
}
"""Values of each key, as literals; each entry is equally likely. A prompt that is shorter than its images is sampled
again. There are two rollouts, because a third would be synthetic, which does not know images."""

_DEFAULTS: Mapping[str, object] = {"limit": None, "results_dir": "results"}

_USAGE = f"""\
python -m maintenance.vision [key=value ...]

Samples {COUNT} trials of vision-language models, simulates those that have no row
yet, at most limit of them, and compares their phases with the closed form.
Keys and defaults:
{chr(10).join(f"  {key}={value}" for key, value in _DEFAULTS.items())}

Examples:
  python -m maintenance.vision
  python -m maintenance.vision limit=2 results_dir=results/reference
"""


@as_command("vision", when_interrupted="What has finished is kept; the same command continues from there.")
def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return the exit code."""
    words = sys.argv[1:] if argv is None else list(argv)
    if {"-h", "--help"} & set(words):
        print_text(_USAGE)
        return EXIT_OK
    return _run(*_settings(words))


def sample() -> tuple[TrialSpec, ...]:
    """Return the trials of the sample, which depend only on its seed."""
    fixed = {key: value for key, value in FIXED_IN_EACH.items() if key not in _AXES}
    return sample_trials(COUNT, seed=SEED, axes=_AXES, fixed={**fixed, "recipe": "grpo"}, is_wanted=_has_form)


def compared(number: int, spec: TrialSpec, trace: Trace) -> pd.DataFrame:
    """Return one row per phase of a trial, and one of the whole trial: bytes of both, and the error of the estimate."""
    assert spec.gpu is not None
    replayed = replay_on_card(trace.on(KNOWN_GPUS[spec.gpu].chip), capacity_bytes=None, config=AllocatorConfig())
    instants = phase_instants(spec, architecture_of(spec.model))
    peaks = {phase.value: found.peak_allocated_bytes for phase, found in replayed.phases.items()}
    estimated = {phase.value: int(instant.total_bytes) for phase, instant in instants.items()}
    peaks["all"], estimated["all"] = replayed.peak_allocated_bytes, max(estimated.values())
    rows = [
        {
            "trial": number,
            "model": spec.model,
            "tuning": spec.tuning.value,
            "gradient_checkpointing": spec.gradient_checkpointing,
            "phase": phase,
            "simulated_allocated_bytes": size,
            "estimated_allocated_bytes": estimated.get(phase, 0),
            "error": estimated.get(phase, 0) / size - 1,
        }
        for phase, size in peaks.items()
    ]
    return pd.DataFrame(rows)


def _run(limit: int | None, folder: Path) -> int:
    specs = written_down(folder, sample(), seed=SEED)
    path = folder / ROWS
    rows = pd.read_csv(path) if path.exists() else pd.DataFrame({"trial": []})
    pending = [number for number in range(len(specs)) if number not in set(rows["trial"])]
    for number in pending[:limit]:
        rows = pd.concat([rows, compared(number, specs[number], _simulated(specs[number]))])
        rows = rows.sort_values("trial", kind="stable").astype(dict.fromkeys(_WHOLE, int))
        write_atomically(path, as_csv(rows).encode())
        print_line(f"Trial {number} of {len(specs)} is compared: {path}")
    if len(rows):
        write_atomically(folder / PAGE, page(rows, count=len(specs)).encode())
    done = rows["trial"].nunique()
    return EXIT_OK if done == len(specs) else EXIT_SOME_TRIALS_FAILED


def _simulated(spec: TrialSpec) -> Trace:
    from maintenance.vision.trial import simulate_with_images

    return simulate_with_images(spec, VISION_MODELS[spec.model].config)


def _settings(words: Sequence[str]) -> tuple[int | None, Path]:
    values, faults = read_words(words, _DEFAULTS)
    reader = FieldReader(values)
    limit = reader.optional_count("limit")
    folder = Path(reader.text("results_dir", "a folder")) / NAME
    if reader.sound("results_dir"):
        faults.extend(folder_faults(folder))
    if faults or reader.faults:
        raise UsageError((*faults, *reader.faults))
    return limit, folder


def _has_form(spec: TrialSpec) -> bool:
    return has_form(spec, architecture_of(spec.model))
