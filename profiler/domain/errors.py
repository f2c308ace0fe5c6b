"""Errors as sentences for the user, and the exit codes of the commands (docs/exit_codes.md)."""

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from difflib import get_close_matches
from enum import StrEnum

EXIT_OK = 0
EXIT_USAGE = 2
EXIT_SOME_TRIALS_FAILED = 3
EXIT_ANSWER_IS_NO = 4
EXIT_GPU_UNUSABLE = 33
EXIT_TOO_MANY_FAILURES = 34
EXIT_INTERNAL = 70
EXIT_SIGNAL_BASE = 128
_EXIT_FAILED = 1


@dataclass(frozen=True, kw_only=True)
class ExitCode:
    """What an exit code means, and what a user does about it; both are Markdown of the documentation."""

    code: int
    meaning: str
    to_do: str = ""
    from_it_on: str = ""
    """What is added to `code`, where it is the first of several: ``"n"``."""


EXIT_CODES = (
    ExitCode(
        code=EXIT_OK,
        meaning="Done. Out of memory is an answer, and so is an estimate that does not fit.",
    ),
    ExitCode(
        code=_EXIT_FAILED,
        meaning="A file could not be written, read or locked, a figure could not be drawn, or standard output is on a "
        "full disk.",
        to_do="Free or mount the disk, then run the same command.",
    ),
    ExitCode(
        code=EXIT_USAGE,
        meaning="Wrong input, with one sentence per fault, or no GPU for a command that needs one. Nothing was "
        "started.",
        to_do="Correct what the sentences name.",
    ),
    ExitCode(
        code=EXIT_SOME_TRIALS_FAILED,
        meaning="Some trials, or a script of `profiler.run`, have no answer: failed, killed, timed out, contended, or "
        "not reached within a stage's limit; of `profiler.seams`, would have none with the installed libraries.",
        to_do="Run the same command: it runs only those trials.",
    ),
    ExitCode(
        code=EXIT_ANSWER_IS_NO,
        meaning="The answer is no: a condition that the command was asked to check does not hold (below).",
        to_do="Read the report: what was asked was computed.",
    ),
    ExitCode(
        code=EXIT_GPU_UNUSABLE,
        meaning="No GPU is left to run on: broken, lost, or in use by other programs.",
        to_do="Run on another machine, or end the programs that are named.",
    ),
    ExitCode(
        code=EXIT_TOO_MANY_FAILURES,
        meaning="Five trials in a row had no answer, so the cause is probably not in the trials.",
        to_do="Read the last trial's message, then run the same command.",
    ),
    ExitCode(
        code=EXIT_INTERNAL,
        meaning="An unforeseen error of this program or of a library. The sentence names the file with the full text.",
        to_do="Report it with that file.",
    ),
    ExitCode(
        code=EXIT_SIGNAL_BASE,
        from_it_on="n",
        meaning="Interrupted by signal n: 130 Ctrl-C (SIGINT), 143 SIGTERM, 129 SIGHUP.",
        to_do="Run the same command: it continues.",
    ),
)


class FailIf(StrEnum):
    """Values of `fail_if`: the answer with which a command ends with `EXIT_ANSWER_IS_NO`."""

    DOES_NOT_FIT = "does_not_fit"
    TIGHT = "tight"
    """Also if it is tight, so that only a trial that surely fits passes."""
    DIES = "dies"
    """Of a forecast: a seed runs out of memory."""


_SUGGESTION = "Did you mean "
_WITH_SUBJECT = ("its ", "there ", "a ", "the ", "no ")
"""How a problem begins that is a sentence by itself."""

_LONGEST_BEFORE_A_HINT = 100
"""Most characters of a problem that is read before its suggestion."""

_CLOSE = 0.75
"""Lowest similarity of a suggestion, as `difflib` measures it."""

_SHORTEST_PART = 4
"""Fewest characters of a name that is suggested because it contains what was written."""


@dataclass(frozen=True, kw_only=True)
class Fault:
    """One fault of the input: the key, the value found, the problem and a hint."""

    key: str
    found: str
    problem: str
    hint: str = ""

    def sentence(self) -> str:
        """Return the fault as one line for a terminal: values shortened, control characters escaped.

        A suggestion comes before a problem that lists much.
        """
        found = f"{shortened(self.key, 100)}={shortened(self.found, 500)}"
        problem = shortened(self.problem, 2000)
        if self.hint.startswith(_SUGGESTION) and problem[0].islower() and len(problem) > _LONGEST_BEFORE_A_HINT:
            subject = problem[0].upper() + problem[1:] if problem.startswith(_WITH_SUBJECT) else f"It {problem}"
            return printable(f"{found}: {self.hint} {subject}.")
        tail = f" {self.hint}" if self.hint else ""
        return printable(f"{found}: {problem}.{tail}")


def shortened(text: str, most: int) -> str:
    """Return `text`, or its first `most` characters with the number of all."""
    return text if len(text) <= most else f"{text[:most]}... ({len(text):,} characters)"


def printable(text: str) -> str:
    """Return `text` with line breaks, escape sequences and other characters that are not shown spelled out."""
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)


class ProfilerError(Exception):
    """An error with a sentence for the user; the command ends with its `exit_code`."""

    exit_code = _EXIT_FAILED


class UnsupportedTrialError(Exception):
    """A trial that is impossible or that the simulation does not support. This is a result, not a failure."""


@contextmanager
def interruption_first() -> Iterator[None]:
    """Raise a `KeyboardInterrupt` that another error has replaced.

    A library that is interrupted may fail while it cleans up, and its error then hides why. An interruption that is
    handled already when the block begins hides nothing: errors within are further ones.

    Raises:
        KeyboardInterrupt: In place of an error that was raised while it was handled.
    """
    handled = sys.exception()
    try:
        yield
    except Exception as error:
        before = error.__context__
        while before is not handled and not isinstance(before, KeyboardInterrupt | None):
            before = before.__context__
        if before is None or before is handled:
            raise
        raise before from None


MOST_SENTENCES = 50
"""Most faults that are spelled out; the others are counted."""


class UsageError(ProfilerError):
    """Wrong input, with every fault found, not only the first."""

    exit_code = EXIT_USAGE

    def __init__(self, faults: Sequence[Fault]) -> None:
        self.faults = tuple(faults)
        sentences = [fault.sentence() for fault in self.faults[:MOST_SENTENCES]]
        others = len(self.faults) - len(sentences)
        super().__init__("\n".join([*sentences, f"There are {others:,} more faults."] if others else sentences))


def nearest(found: str, known: Sequence[str]) -> str:
    """Return ``"Did you mean 'x'?"`` with the name in `known` that is closest to `found`; empty if none is close.

    Of names that only contain `found`, it is the first.
    """
    written, names = found.lower(), {name.lower(): name for name in known}
    close = get_close_matches(written, names, n=1, cutoff=_CLOSE)
    if not close and len(written) >= _SHORTEST_PART:
        close = [name for name in names if written in name]
    return f"{_SUGGESTION}'{names[close[0]]}'?" if close else ""
