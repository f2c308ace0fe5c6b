"""`python -m maintenance.sharding_page`: what each GPU of the kept trials of `+grid=fsdp` holds at its peak.

Peaks are emulated; their parts are those of the closed form. Writes `sharding.md` next to the tables of the grid.

Exit codes: docs/exit_codes.md.
"""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import pandas as pd

from maintenance.sampling import architecture_of
from profiler.analytical.estimate import estimate, phase_instants
from profiler.command_line import as_command, print_line, print_text
from profiler.config.grid import expand, read_grid
from profiler.config.specification import parse_points
from profiler.domain.errors import EXIT_OK, Fault, UsageError
from profiler.domain.memory import Category
from profiler.domain.trial import DistributedType, TrialSpec
from profiler.domain.units import GIB
from profiler.rendering.markdown_table import markdown_table
from profiler.storage.atomic import write_atomically
from profiler.sweep.command import read_command
from profiler.sweep.composition import compose

GRID, PAGE = "fsdp", "sharding.md"
FOLDER = Path("results") / "reference" / GRID

_KEPT = (Category.WEIGHTS, Category.GRADIENTS, Category.OPTIMIZER_STATE)

_NAMES: Mapping[DistributedType, str] = {
    DistributedType.NO: "one GPU",
    DistributedType.MULTI_GPU: "DDP",
    DistributedType.FSDP: "FSDP 2",
    DistributedType.DEEPSPEED: "ZeRO-{stage}",
}

_COLUMNS = (
    "model",
    "GPUs",
    "how",
    "emulated",
    "estimated",
    "weights, gradients, states",
    "gathered and communicated",
    "the rest",
)

_USAGE = f"""\
python -m maintenance.sharding_page

Writes {FOLDER / PAGE} from the tables in that folder.

Examples:
  python -m maintenance.sharding_page
"""


@as_command("sharding_page")
def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return the exit code."""
    words = sys.argv[1:] if argv is None else list(argv)
    if {"-h", "--help"} & set(words):
        print_text(_USAGE)
        return EXIT_OK
    if words:
        raise UsageError([Fault(key=words[0], found=words[0], problem="is unknown; the command takes no words")])
    write_atomically(FOLDER / PAGE, page(pd.read_parquet(FOLDER / "runs.parquet")).encode())
    print_line(f"{FOLDER / PAGE}")
    return EXIT_OK


def page(runs: pd.DataFrame) -> str:
    """Return the page of Markdown of the grid's table."""
    peaks = {_key(row): (row["status"], row["peak_allocated_bytes"]) for row in runs.to_dict("records")}
    found = [(spec, *peaks.get(_key(_plain(spec)), ("not run", None))) for spec in _specs()]
    lines = [
        "# What is sharded, gathered and communicated",
        "",
        "Peak of allocated memory on one GPU, in GiB (2^30 bytes), of full fine-tuning with checkpointing, AdamW and "
        "the lengths of `sweeps/config.yaml`. `emulated` is read from torch's counters on an emulated H100 of 80 GB; a "
        "trial that ran out of memory has no peak. The last three columns are the closed form's parts of `estimated`: "
        "what this GPU keeps, which is sharded under FSDP 2 and ZeRO; gathered weights and buckets of gradients; and "
        "activations, logits, caches and workspaces. Nothing here is measured, and NCCL's own buffers are left out.",
        "",
        markdown_table(_COLUMNS, [_row(spec, status, peak) for spec, status, peak in found]),
        "",
        "Regenerate with `python -m maintenance.sharding_page`.",
    ]
    return "\n".join(lines) + "\n"


def _specs() -> tuple[TrialSpec, ...]:
    command = read_command([f"+grid={GRID}"])
    return parse_points(expand(read_grid(GRID, compose(command)), command.axes), architecture_of=architecture_of)


def _plain(spec: TrialSpec) -> dict[str, object]:
    return {key: getattr(spec, key) for key in ("model", "num_processes", "distributed_type", "zero_stage")}


def _key(row: Mapping[str, object]) -> tuple[object, ...]:
    stage = row["zero_stage"]
    return (
        row["model"],
        row["num_processes"],
        str(row["distributed_type"]),
        None if pd.isna(stage) else float(str(stage)),
    )


def _row(spec: TrialSpec, status: str, peak: float | None) -> tuple[str, ...]:
    architecture = architecture_of(spec.model)
    found = estimate(spec, architecture)
    sizes = phase_instants(spec, architecture)[found.peak_phase].sizes
    kept = sum(int(sizes.get(category, 0)) for category in _KEPT)
    moved = int(sizes.get(Category.COMMUNICATION, 0))
    rest = found.peak_allocated_bytes - kept - moved
    emulated = status if status != "ok" or peak is None else _gib(peak)
    name = _NAMES[spec.distributed_type].format(stage=spec.zero_stage)
    numbers = (_gib(found.peak_allocated_bytes), _gib(kept), _gib(moved), _gib(rest))
    return (spec.model, str(spec.num_processes), name, emulated, *numbers)


def _gib(size: float) -> str:
    return f"{size / GIB:.1f}"


if __name__ == "__main__":
    sys.exit(main())
