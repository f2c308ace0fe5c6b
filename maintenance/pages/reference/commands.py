"""The pages of the commands and of the run options, made from the declarations of options and from the help texts."""

import contextlib
import io
import re
from collections.abc import Iterator, Mapping

from maintenance.pages.members import escaped_part, marked, table
from profiler.commands import COMMANDS, Command, options_of_command
from profiler.config.options.option import Option
from profiler.config.options.run_options import RUN_OPTIONS
from profiler.console import NAME, main
from profiler.domain.machines.extras import LINUX, SYSTEMS
from profiler.rendering.layouts.markdown import code_block

_HEAD = """\
# Run options

How a sweep runs its trials: `python -m profiler.sweep +grid=NAME timeout_s=600 jobs=2`. Run options do not change what
a trial is, and not the name under which it is stored.

"""

_HEAD_OF_COMMANDS = """\
# Commands

`grpo-vram COMMAND` and `python -m profiler.COMMAND` are the same. `key=value`, `--key value` and `--key=value` are the
same in each of them, and `--max-completion-length 512` is `max_completion_length=512`. [Exit codes](exit_codes.md) have
one meaning in all of them.
"""

_COLUMNS = ("key", "default", "unit", "allowed", "meaning")


def run_options_page() -> str:
    """Return the page of the run options."""
    return _HEAD + _table(RUN_OPTIONS) + "\n"


def commands_page() -> str:
    """Return the page that lists the commands."""
    rows = [
        (f"[{name}](reference/commands/{name}.md)", f"{command.summary}", _extra(command), _systems(command))
        for name, command in COMMANDS.items()
    ]
    return f"{_HEAD_OF_COMMANDS}\n{table(('command', 'what it does', 'extra', 'runs on'), rows)}\n"


def command_page(name: str) -> str:
    """Return the page of one command."""
    command = COMMANDS[name]
    extras, install = _extra(command), "[installation](../../install.md)"
    needs = f"It needs {'an extra' if command.uses else 'the extra'} ({install}): {extras}. " if extras else ""
    head = f"`{NAME} {name}`, or `python -m profiler.{name}`: {command.summary}. {needs}Runs on {_systems(command)}."
    return "\n\n".join([f"# {name}", head, *_described(name), *_options(name), *_examples(name)]) + "\n"


def _extra(command: Command) -> str:
    """Return the extra of a command, and those of its uses."""
    of_all = [f"`{command.extra}`"] if command.imports else []
    of_uses = [f"`{needs.extra}` for `{words}`" for words, needs in command.uses.items() if needs.imports]
    return ", ".join([*of_all, *of_uses])


def _systems(command: Command) -> str:
    """Return where a command runs, and which of its uses run on Linux only."""
    if command.on_linux_only:
        return LINUX
    of_uses = [f"`{words}` on {LINUX} only" for words, needs in command.uses.items() if needs.on_linux_only]
    return "; ".join([", ".join(SYSTEMS), *of_uses])


def _options(name: str) -> Iterator[str]:
    if name == "sweep":
        run_options = "[The run options](../../run_options.md), and which [grid](../grids.md) it runs (`+grid=NAME`)."
        yield f"## Options\n\n{run_options}"
    elif options := options_of_command(name):
        yield f"## Options\n\n{_table(options)}"
    if COMMANDS[name].has_trial_keys:
        yield "It also takes [the keys of a trial](../../keys.md)."


def _table(options: Mapping[str, Option]) -> str:
    rows = [
        (f"`{name}`", f"`{option.default_text}`", option.unit, marked(option.allowed), marked(_meaning(option)))
        for name, option in options.items()
    ]
    return table(_COLUMNS, rows)


def _meaning(option: Option) -> str:
    return option.meaning + (f"; null: {option.null}" if option.null else "")


# ---- what the help text says in addition -----------------------------------------------------------------------------

_EXAMPLES = "Examples:"
_LISTED = re.compile(r"Keys of a trial|Run options|Grids:|  ")
"""How the parts of a help text begin that are tables here."""
_PAGE = re.compile(r"docs/([a-z_]+\.md)")


def _parts(name: str) -> list[str]:
    shown = io.StringIO()
    with contextlib.redirect_stdout(shown):
        main([name, "--help"])
    return shown.getvalue().strip().split("\n\n")


def _described(name: str) -> Iterator[str]:
    usage, *others = _parts(name)
    yield code_block(usage.removeprefix("Usage: "), language="text")
    for part in others:
        if "\n  " in part and not part.startswith((_EXAMPLES, "  ")) and not _LISTED.match(part):
            yield code_block(part, language="text")
        elif not part.startswith(_EXAMPLES) and not _LISTED.match(part):
            yield _linked(part)
    if name == "claims":
        yield code_block(next(part for part in others if part.startswith("  holds ")), language="text")


def _linked(text: str) -> str:
    """Return a paragraph of a help text, in which pages that it names are links."""
    parts = _PAGE.split(text)
    return "".join(f"[{part}](../../{part})" if number % 2 else escaped_part(part) for number, part in enumerate(parts))


def _examples(name: str) -> Iterator[str]:
    for part in _parts(name):
        if part.startswith(_EXAMPLES):
            lines = "\n".join(line.strip() for line in part.splitlines()[1:])
            yield f"## Examples\n\n{code_block(lines, language='sh')}"
