"""`python -m maintenance.campaign WHAT`: the stages of the campaign on a real card, and their other commands.

Exit codes: docs/exit_codes.md. An unfinished stage ends with 3; if a sweep ends the stage, its exit code is returned.
"""

import json
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from maintenance.campaign.archive import pack, unpack
from maintenance.campaign.command import LIMIT_S, PREDICTED, USAGE, Command, read_command
from maintenance.campaign.compared.side_by_side import looking_lines, rollout_lines, sampled_times
from maintenance.campaign.facts import CardFacts, FactTools, take_facts
from maintenance.campaign.recorded_history import recorded_history_lines, recorded_history_of
from maintenance.campaign.running import StageEnd, run_stage
from maintenance.campaign.stages import STAGES
from profiler.analysis.times.sweep_time import SweepTally
from profiler.command_line import as_command, print_line, print_text
from profiler.config.options.command_words import HELP_FLAGS
from profiler.config.options.run_options import RunOptions
from profiler.domain.errors import EXIT_OK, Fault, UsageError
from profiler.domain.models.builtin_models import BUILTIN_MODELS
from profiler.domain.runs.outcome import Versions
from profiler.domain.trials.trial import Backend, PlannedTrial, TrialSpec
from profiler.measurement.driver.visible import VisibleGpu, VisibleGpus, visible_gpus
from profiler.measurement.samples.host_usage import usable_cores
from profiler.storage.files.atomic import write_atomically
from profiler.storage.records.versioned import installed_versions
from profiler.storage.stores.record_store import RecordStore

if TYPE_CHECKING:  # the worker imports torch, which takes seconds
    from profiler.execution.pythons import Workers
    from profiler.worker.cuda.measured import Measured

_WHOLE_HISTORY_ENTRIES = 5_000_000


def _facts_of(uuid: str) -> CardFacts:
    import torch

    from maintenance.campaign.warm_step import TorchWork
    from profiler.measurement.counters.torch_cuda import TorchCuda
    from profiler.measurement.driver.pynvml_driver import PynvmlDriver
    from profiler.measurement.samples.host_usage import process_tree

    return take_facts(
        uuid,
        FactTools(
            cuda=TorchCuda(),
            nvml=PynvmlDriver(),
            work=TorchWork(),
            own_processes=process_tree,
            cuda_version=torch.version.cuda,
            versions=installed_versions(),
        ),
    )


def _record(spec: TrialSpec, uuid: str) -> "Measured":
    from profiler.worker.cuda.real import run_real

    config = BUILTIN_MODELS[spec.model].config
    return run_real(spec, config, gpu_uuid=uuid, snapshot=True, history_entries=_WHOLE_HISTORY_ENTRIES)


def _workers_of(backend: Backend, python: Path | None) -> "Workers | None":
    from profiler.execution.pythons import emulated_workers, simulated_workers

    if backend is Backend.EMULATED:
        return emulated_workers(RunOptions(python=python))
    return simulated_workers(RunOptions(python=python)) if python is not None else None


def _simulate(
    plan: Sequence[PlannedTrial], store: RecordStore, versions: Versions, *, workers: "Workers | None" = None
) -> None:
    from profiler.execution import run_trials
    from profiler.execution.job import TRIAL_WORKER
    from profiler.rendering.layouts.terminal import TerminalConsole
    from profiler.rendering.live.progress import SweepProgress

    if not plan:
        return
    program = TRIAL_WORKER if workers is None else replace(TRIAL_WORKER, interpreter_of=workers.interpreter_of)
    with SweepProgress(SweepTally(plan), console=TerminalConsole()) as observer:
        jobs = min(usable_cores(), len(plan))
        options = RunOptions(jobs=jobs, timeout_s=LIMIT_S)
        run_trials(plan, options=options, store=store, versions=versions, observer=observer, program=program)


@dataclass(frozen=True, kw_only=True)
class CampaignParts:
    """External dependencies of the command."""

    visible_gpus: Callable[[], VisibleGpus] = visible_gpus
    installed_versions: Callable[[], Versions] = installed_versions
    facts_of: Callable[[str], CardFacts] = _facts_of
    """By the GPU's UUID."""
    record: Callable[[TrialSpec, str], "Measured"] = _record
    workers_of: "Callable[[Backend, Path | None], Workers | None]" = _workers_of
    """Workers in another Python; None for those of this one."""
    simulate: Callable[..., None] = _simulate
    """As `Simulate`; `workers` of another Python follow by name."""
    run_stage: Callable[..., StageEnd] = run_stage


@as_command("campaign", when_interrupted="What has finished is kept; the same command continues from there.")
def main(argv: Sequence[str] | None = None, *, parts: CampaignParts | None = None) -> int:
    """Run the command and return the exit code."""
    parts = parts or CampaignParts()
    words = sys.argv[1:] if argv is None else list(argv)
    if set(words) & set(HELP_FLAGS):
        print_text(USAGE)
        return EXIT_OK
    asked = read_command(words)
    if asked.what == "stage":
        return _run_stage(asked, parts)
    for line in _lines(asked, parts):
        print_line(line)
    return EXIT_OK


def _run_stage(asked: Command, parts: CampaignParts) -> int:
    """Run one stage and pack the folder, also after a failure."""
    wanted = asked.stage
    assert wanted is not None
    if wanted.needs_gpu:
        _the_gpu(parts)
    if asked.archive is not None and list(asked.archive.glob("*.part*")):
        print_line(f"{unpack(asked.archive, asked.folder)} files taken from the archive in {asked.archive}.")
    asked.folder.mkdir(parents=True, exist_ok=True)
    try:
        end = parts.run_stage(wanted, asked.folder, limit_s=asked.limit_s, more=asked.keys, say=print_line)
    finally:
        if asked.archive is not None:
            packed = pack(asked.folder, asked.archive)
            print_line(f"Packed: {len(packed)} parts in {asked.archive}.")
    print_line(end.line)
    return end.exit_code


def _lines(asked: Command, parts: CampaignParts) -> Sequence[str]:
    what = asked.what
    if what == "list":
        return [f"{one.letter}  {one.title}" for one in STAGES]
    if what == "rollouts":
        return rollout_lines(RecordStore(asked.folder).read_all())
    if what == "looking":
        return looking_lines(found for folder in asked.folders if (found := sampled_times(folder)) is not None)
    if what in PREDICTED:
        return _predicted_lines(asked, parts)
    if what == "thresholds":
        from maintenance.campaign.compared.judged import threshold_lines  # tables need pandas: half a second

        return threshold_lines(asked.folders)
    if what == "keep":
        from maintenance.campaign.compared.kept import keep

        return keep(*asked.folders)
    gpu = _the_gpu(parts)
    if what == "facts":
        return _facts(asked.folder, gpu, parts)
    assert asked.tuning is not None
    return recorded_history_lines(
        recorded_history_of(asked.tuning, folder=asked.folder, record=lambda spec: parts.record(spec, gpu.uuid))
    )


def _predicted_lines(asked: Command, parts: CampaignParts) -> Sequence[str]:
    backend = PREDICTED[asked.what]
    workers = parts.workers_of(backend, asked.python)
    from maintenance.campaign.compared.simulated import simulate_measured

    found = simulate_measured(
        asked.folder,
        backend=backend,
        versions=parts.installed_versions() if workers is None else workers.versions,
        simulate=parts.simulate if workers is None else partial(parts.simulate, workers=workers),
    )
    unknown = [f"{card} is not a card that can be {backend}." for card in found.unknown_cards]
    return [f"{found.trials} measured trials are {backend}.", *unknown, *found.left_out]


def folder_name(card: str) -> str:
    """A card's name in lower case with dashes: ``nvidia-h100-80gb-hbm3``."""
    return re.sub(r"[^a-z0-9]+", "-", card.lower()).strip("-")


def _facts(folder: Path, gpu: VisibleGpu, parts: CampaignParts) -> Sequence[str]:
    """Return the facts of this card under this driver; take them if they are not stored."""
    driver = folder_name(parts.visible_gpus().driver_version or "unknown")
    path = folder / "facts" / f"{folder_name(gpu.name)}-{driver}.json"
    if not path.exists():
        write_atomically(path, (json.dumps(asdict(parts.facts_of(gpu.uuid)), indent=1) + "\n").encode())
    return [path.read_text().rstrip(), f"Kept in {path}."]


def _the_gpu(parts: CampaignParts) -> VisibleGpu:
    """The GPU that torch takes first.

    Raises:
        UsageError: There is none, or torch is a build without CUDA.
    """
    visible, torch_version = parts.visible_gpus(), parts.installed_versions().torch or ""
    reason = visible.note
    if visible.gpus and torch_version.endswith("+cpu"):
        reason = f"torch {torch_version} is a build without CUDA, though {visible.gpus[0].name} is visible"
    if reason or not visible.gpus:
        hint = "Everything else of the profiler runs without one: python -m profiler.sweep simulates."
        raise UsageError(
            [Fault(key="card", found="none", problem=f"the campaign needs a GPU, but {reason}", hint=hint)]
        )
    return visible.gpus[0]
