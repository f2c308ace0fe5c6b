"""`python -m profiler.campaign WHAT`: what `scripts/campaign.sh` asks beside sweeps.

Exit codes: 0 done, 1 the trial or the disk failed, 2 something is wrong with the input, or there is no GPU.
"""

import argparse
import json
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NoReturn

from profiler.campaign.facts import CardFacts, FactTools, take_facts
from profiler.campaign.side_by_side import looked, looking_lines, rollout_lines
from profiler.campaign.truth import truth_lines, truth_of
from profiler.domain.builtin_models import BUILTIN_MODELS
from profiler.domain.errors import EXIT_OK, Fault, ProfilerError, UsageError
from profiler.domain.gpu import KNOWN_GPUS
from profiler.domain.outcome import Versions
from profiler.domain.trial import TrialSpec, Tuning
from profiler.measurement.visible import VisibleGpu, VisibleGpus, visible_gpus
from profiler.storage.atomic import write_atomically
from profiler.storage.records import RecordStore
from profiler.storage.versions import installed_versions
from profiler.worker.measured import Measured

CAPS = ("h100-80gb", "l40s-48gb", "a100-40gb", "rtx-4090-24gb", "t4-16gb")
"""Cards that a bigger one is capped to: 80, 48, 40, 24 and 16 GiB by name."""

_WHOLE_HISTORY_ENTRIES = 5_000_000


def _facts_of(uuid: str) -> CardFacts:
    import torch

    from profiler.campaign.warm_step import TorchWork
    from profiler.measurement.process_tree import process_tree
    from profiler.measurement.pynvml_driver import PynvmlDriver
    from profiler.measurement.torch_cuda import TorchCuda

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


def _record(spec: TrialSpec, uuid: str) -> Measured:
    from profiler.worker.real import run_real

    config = BUILTIN_MODELS[spec.model].config
    return run_real(spec, config, gpu_uuid=uuid, snapshot=True, history_entries=_WHOLE_HISTORY_ENTRIES)


@dataclass(frozen=True, kw_only=True)
class CampaignParts:
    """The outside world of the command."""

    visible_gpus: Callable[[], VisibleGpus] = visible_gpus
    installed_versions: Callable[[], Versions] = installed_versions
    facts_of: Callable[[str], CardFacts] = _facts_of
    """By the GPU's UUID."""
    record: Callable[[TrialSpec, str], Measured] = _record


def main(argv: Sequence[str] | None = None, *, parts: CampaignParts | None = None) -> int:
    """The command; gives its exit code."""
    try:
        for line in _lines(_parser().parse_args(argv), parts or CampaignParts()):
            sys.stdout.write(f"{line}\n")
    except ProfilerError as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_code
    return EXIT_OK


def _lines(asked: argparse.Namespace, parts: CampaignParts) -> Sequence[str]:
    what: str = asked.what
    if what == "rollouts":
        return rollout_lines(RecordStore(asked.folder).read_all())
    if what == "looking":
        return looking_lines(found for folder in asked.folders if (found := looked(folder)) is not None)
    gpu = _the_gpu(parts)
    if what == "card":
        return [folder_name(gpu.name)]
    if what == "caps":
        return [name for name in CAPS if KNOWN_GPUS[name].memory_bytes < gpu.memory_bytes and not _is(name, gpu)]
    if what == "facts":
        return _facts(asked.folder / "facts.json", gpu, parts)
    return truth_lines(truth_of(asked.tuning, folder=asked.folder, record=lambda spec: parts.record(spec, gpu.uuid)))


def folder_name(card: str) -> str:
    """A card's name in lower case with dashes: ``nvidia-h100-80gb-hbm3``."""
    return re.sub(r"[^a-z0-9]+", "-", card.lower()).strip("-")


def _is(name: str, gpu: VisibleGpu) -> bool:
    return KNOWN_GPUS[name].title == gpu.name


def _facts(path: Path, gpu: VisibleGpu, parts: CampaignParts) -> Sequence[str]:
    """The facts, taken where they are not kept already."""
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
        way_out = "Everything else of the profiler runs without one: python -m profiler.sweep simulates."
        raise UsageError(
            [Fault(key="card", found="none", allowed=f"the campaign needs a GPU, but {reason}", way_out=way_out)]
        )
    return visible.gpus[0]


class _Parser(argparse.ArgumentParser):
    """Complains in one sentence, as every command here does."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(
            [Fault(key="arguments", found=" ".join(sys.argv[1:]) or "none", allowed=message, way_out=_USAGE)]
        )


_USAGE = "Write: scripts/campaign.sh list"


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="python -m profiler.campaign", description="What the campaign asks of a card beside sweeps.")
    what = parser.add_subparsers(dest="what", required=True)
    what.add_parser("card", help="the name of the folder for this card's results")
    what.add_parser("caps", help="the smaller cards that this one can be capped to, largest first")
    facts = what.add_parser("facts", help="facts.json: names, versions, context, workspaces, rulers side by side")
    facts.add_argument("folder", type=Path)
    truth = what.add_parser("allocator_truth", help="record a trial's allocations and replay them through the model")
    truth.add_argument("tuning", type=Tuning, choices=[Tuning.FULL, Tuning.LORA])
    truth.add_argument("folder", type=Path)
    rollouts = what.add_parser("rollouts", help="trials of a folder with both rollouts, side by side")
    rollouts.add_argument("folder", type=Path)
    looking = what.add_parser("looking", help="step times of folders that were sampled at different periods")
    looking.add_argument("folders", type=Path, nargs="+")
    return parser
