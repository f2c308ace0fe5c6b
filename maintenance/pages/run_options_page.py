"""The pages docs/run_options.md and docs/commands.md, made from the declarations of options."""

from collections.abc import Mapping

from profiler.commands import COMMANDS, options_of_command
from profiler.config.options.option import Option
from profiler.config.options.run_options import RUN_OPTIONS
from profiler.rendering.document import Align
from profiler.rendering.layouts.markdown import markdown_table

_HEAD = """\
# Run options

How a sweep runs its trials: `python -m profiler.sweep +grid=NAME timeout_s=600 jobs=2`. Run options do not change what
a trial is, and not the name under which it is stored. This page is made from
`profiler/config/options/run_options.py` by `python tests/config/test_run_options.py`.

"""


def run_options_page() -> str:
    """Return the whole page."""
    return _HEAD + _table(RUN_OPTIONS)


_HEAD_OF_COMMANDS = """\
# Options of the commands

What each command takes besides files, the keys of a trial ([keys.md](keys.md)) and, in a sweep, the run options
([run_options.md](run_options.md)). `key=value`, `--key value` and `--key=value` are the same. This page is made from
the declarations in `profiler/*/command.py` by `python tests/config/test_run_options.py`.
"""


def commands_page() -> str:
    """Return the whole page."""
    sections = (
        f"\n## {name}\n\n`python -m profiler.{name}`: {command.summary}.\n\n{_table(options_of_command(name))}"
        for name, command in COMMANDS.items()
        if name != "sweep"
    )
    return _HEAD_OF_COMMANDS + "".join(sections)


def _table(options: Mapping[str, Option]) -> str:
    rows = [
        (f"`{name}`", f"`{option.default_text}`", option.unit, option.allowed, _meaning(option))
        for name, option in options.items()
    ]
    return markdown_table(("key", "default", "unit", "allowed", "meaning"), rows, align=Align.LEFT) + "\n"


def _meaning(option: Option) -> str:
    return option.meaning + (f"; null: {option.null}" if option.null else "")
