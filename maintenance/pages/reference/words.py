"""The pages of the words: exit codes, and the glossary of metrics, origins, phases, categories and outcomes."""

from collections.abc import Iterator, Mapping
from enum import StrEnum

from maintenance.pages.docstrings import limits_of
from maintenance.pages.members import marked, table, table_of
from profiler.analytical.explanation.explained import Fit
from profiler.commands import COMMANDS, options_of_command
from profiler.config.options.option import MAX_INCREASE
from profiler.domain.errors import EXIT_CODES, ExitCode
from profiler.domain.memory import NOT_EMULATED, Category, Origin, Phase
from profiler.domain.runs.outcome import Status

_OF_CODES = """\
# Exit codes

Each code has the same meaning in every command. What has finished is stored, whatever the code.
"""

_ASKED = """\
## Code 4

A script asks for it with one key. [How to guard a job](how_to/guard.md) shows it in continuous integration.
"""

_CHECKS = ("fail_if", MAX_INCREASE)


def exit_codes_page() -> str:
    """Return the page of the exit codes."""
    rows = [(_code(each), each.meaning, each.to_do) for each in EXIT_CODES]
    codes = table(("code", "meaning", "what to do"), rows)
    return f"{_OF_CODES}\n{codes}\n\n{_ASKED}\n{table(('command', 'key', 'values', 'meaning'), list(_checks()))}\n"


def _code(each: ExitCode) -> str:
    return f"{each.code} + {each.from_it_on}" if each.from_it_on else str(each.code)


def _checks() -> Iterator[tuple[str, str, str, str]]:
    for name in COMMANDS:
        # Hydra reads the words of a sweep; `max_increase` has the meaning that it has in a report.
        options = options_of_command("report" if name == "sweep" else name)
        for key in _CHECKS:
            if key in options:
                option = options[key]
                yield f"[{name}](reference/commands/{name}.md)", f"`{key}`", option.allowed, marked(option.meaning)


_OF_WORDS = """\
# Glossary

Sizes are integers of bytes inside tables and JSON; GiB (2³⁰ bytes) are shown. Null means "not known here", never 0.
"""

_METRICS: Mapping[str, str] = {
    "allocated": "memory in tensors (`torch.cuda.max_memory_allocated`)",
    "reserved": "memory that torch's allocator holds (`torch.cuda.max_memory_reserved`): tensors, and what it caches",
    "device": "memory that the driver reports: reserved memory, the CUDA context, and what other libraries hold",
}
_NOUNS: Mapping[str, str] = {
    "trial": "one configuration of training, run once in a process of its own",
    "grid": "the trials that answer one question",
    "sweep": "the trials of one grid, run",
    "recipe": "which trainer of trl runs, or a file of trl that describes a job",
    "peak": "the largest memory of a phase, a step or a trial",
    "instant": "one position of a step at which the closed form adds memory up",
    "limit line": "for each value of one key, the largest value of another that fits a card",
    "constructed": "added to trl's trainer by this project, because trl lacks it: a critic, batches by tokens",
}


BEGINNINGS = "What begins a phase of a script"
"""Title of a section of the docstring of `profiler.scripts`."""


def glossary_page() -> str:
    """Return the page of the words."""
    parts: tuple[tuple[str, str], ...] = (
        ("Nouns", _defined(_NOUNS)),
        ("Metrics", _defined(_METRICS)),
        ("Origins of a number", f"{_members(Origin)}\n\nNot in emulated figures: {NOT_EMULATED}."),
        ("Verdicts of an estimate", _members(Fit)),
        ("Phases of a step", _members(Phase)),
        (BEGINNINGS, "\n".join(f"- {bullet}" for bullet in limits_of("scripts")[BEGINNINGS])),
        ("Categories of memory", _members(Category)),
        ("How a trial ends", _members(Status)),
    )
    return "\n\n".join([_OF_WORDS.strip(), *(f"## {title}\n\n{text}" for title, text in parts)]) + "\n"


def _defined(words: Mapping[str, str]) -> str:
    return table(("word", "meaning"), [(word, meaning) for word, meaning in words.items()])


def _members(words: type[StrEnum]) -> str:
    return table_of(words, "word")
