"""The pages of what can be named: built-in models, cards and grids."""

from collections.abc import Iterator
from pathlib import Path

import yaml

from maintenance.pages.members import marked, table
from profiler.domain.architectures.families import FAMILIES
from profiler.domain.cards.gpu import KNOWN_GPUS
from profiler.domain.memory import as_gib
from profiler.domain.models.builtin_models import BUILTIN_MODELS, VISION_MODELS

_ROOT = Path(__file__).parents[3]
_GRIDS = _ROOT / "sweeps" / "grid"
_KEPT = _ROOT / "results" / "reference"

_OF_MODELS = """\
# Built-in models

`model=` takes a name or a hub id of this table without a network; hub ids in one row have the same tensors, also under
`unsloth/`. [Models](../how_to/models.md) says which others are answered.
"""

_OF_CARDS = """\
# Cards

`gpu=` takes a name, or a part of one that is clear (`gpu=4090`). The memory is what torch reports
(`torch.cuda.get_device_properties(0).total_memory`), which is less than the advertised capacity. Cards of one compute
capability mostly choose the same kernels, and share a simulated run.
"""

_OF_GRIDS = """\
# Grids

`python -m profiler.sweep +grid=NAME` runs the trials of one grid. [How to run a sweep](../how_to/sweep.md) says how
keys replace its values.
"""


def models_page() -> str:
    """Return the page of the built-in models."""
    rows = [
        (f"`{model.name}`", f"{model.parameters:,}", str(model.config["model_type"]), ", ".join(model.hub_ids))
        for model in (*BUILTIN_MODELS.values(), *VISION_MODELS.values())
    ]
    families = ", ".join(f"`{name}`" for name in sorted(FAMILIES))
    return (
        f"{_OF_MODELS}\n{table(('name', 'parameters', 'model_type', 'hub ids'), rows)}\n\n"
        f"Layers of these families (`model_type`) are declared: {families}.\n"
    )


def cards_page() -> str:
    """Return the page of the cards."""
    rows = [
        (
            f"`{card.name}`",
            card.title,
            f"{as_gib(card.memory_bytes):.2f}",
            ".".join(map(str, card.compute_capability)),
            str(card.chip.multiprocessors),
            ", ".join(f"`{name}`" for name in card.other_names),
            marked(card.source),
        )
        for card in KNOWN_GPUS.values()
    ]
    header = ("name", "card", "GiB", "compute capability", "multiprocessors", "other names", "source of the memory")
    return f"{_OF_CARDS}\n{table(header, rows)}\n"


def grids_page() -> str:
    """Return the page of the grids."""
    return f"{_OF_GRIDS}\n{table(('grid', 'question', 'varies', 'kept result'), _grids())}\n"


def _grids() -> Iterator[tuple[str, str, str, str]]:
    for path in sorted(_GRIDS.glob("*.yaml")):
        grid = yaml.safe_load(path.read_text(encoding="utf-8"))
        cases = grid.get("cases") or []
        keys = dict.fromkeys([*(grid.get("axes") or {}), *(key for case in cases for key in case)])
        yield (
            f"[{path.stem}](../../sweeps/grid/{path.name})",
            marked(grid["question"]),
            ", ".join(f"`{key}`" for key in keys if key != "label"),
            _kept_result(path.stem),
        )


def _kept_result(grid: str) -> str:
    """Return the link to the page that is kept of a grid; empty if none is."""
    pages = (name for name in ("report.md", f"{grid}.md") if (_KEPT / grid / name).is_file())
    return next((f"[{name}](../../results/reference/{grid}/{name})" for name in pages), "")
