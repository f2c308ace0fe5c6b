"""The page docs/run_options.md, made from the declarations."""

from dataclasses import fields
from pathlib import PurePath

from profiler.config.reading import show
from profiler.config.run_options import DECLARATIONS, Declaration, RunOptions, kind_of
from profiler.domain.address import ADDRESS_FORMS
from profiler.domain.engine import Engine
from profiler.domain.shard import MAX_SHARDS, Shard
from profiler.domain.slurm import SlurmValue
from profiler.rendering.markdown_table import Align, markdown_table

_HEAD = """\
# Run options

How a sweep runs its trials: `python -m profiler.sweep +grid=NAME timeout_s=600 jobs=2`. Run options do not change what
a trial is, and not the name under which it is stored. This page is made from `profiler/config/run_options.py` by
`python tests/config/test_run_options.py`.

"""


def run_options_page() -> str:
    """Return the whole page."""
    rows = [
        (
            f"`{option.name}`",
            f"`{_default(option.default)}`",
            DECLARATIONS[option.name].unit,
            _allowed(kind_of(option.type), DECLARATIONS[option.name]),
            _meaning(DECLARATIONS[option.name]),
        )
        for option in fields(RunOptions)
    ]
    return _HEAD + markdown_table(("key", "default", "unit", "allowed", "meaning"), rows, align=Align.LEFT) + "\n"


def _default(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else show(value)


def _allowed(kind: object, declaration: Declaration) -> str:
    null = ", or null" if declaration.null else ""
    if kind is bool:
        return "true, false"
    if kind is PurePath:
        address = f", {ADDRESS_FORMS}" if declaration.may_be_address else ""
        return f"a path{address}{null}"
    if kind is Engine:
        return ", ".join(Engine)
    if isinstance(kind, type) and issubclass(kind, SlurmValue):
        return f"{kind.form()}{null}"
    if kind is str:
        return f"{declaration.kind}{null}"
    if kind is Shard:
        return f"k/n with 1 <= k <= n <= {MAX_SHARDS:,}{null}"
    low = f"{declaration.minimum} to" if declaration.is_minimum_allowed else f"above {declaration.minimum}, at most"
    return f"{low} {declaration.maximum:,}{null}"


def _meaning(declaration: Declaration) -> str:
    return declaration.meaning + (f"; null: {declaration.null}" if declaration.null else "")
