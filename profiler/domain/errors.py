"""What can go wrong, as sentences for the user, with the exit codes of the commands (docs/exit_codes.md)."""

from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches

EXIT_OK = 0
EXIT_USAGE = 2
EXIT_SOME_TRIALS_FAILED = 3
EXIT_ANSWER_IS_NO = 4
EXIT_GPU_UNUSABLE = 33
EXIT_TOO_MANY_FAILURES = 34
EXIT_INTERNAL = 70
EXIT_SIGNAL_BASE = 128


@dataclass(frozen=True, kw_only=True)
class Fault:
    """One thing that is wrong with the input: where, what was found, what is allowed and the way out."""

    key: str
    found: str
    problem: str
    hint: str = ""

    def sentence(self) -> str:
        """The fault as one sentence, for a terminal."""
        tail = f" {self.hint}" if self.hint else ""
        return f"{self.key}={self.found}: {self.problem}.{tail}"


class ProfilerError(Exception):
    """An error with a sentence for the user; `exit_code` is what the command ends with."""

    exit_code = 1


class UnsupportedTrialError(Exception):
    """A trial that cannot be: the combination does not exist, or the simulation does not know how. An answer."""


class UsageError(ProfilerError):
    """The input is wrong. Carries every fault found, not only the first."""

    exit_code = EXIT_USAGE

    def __init__(self, faults: Sequence[Fault]) -> None:
        self.faults = tuple(faults)
        super().__init__("\n".join(fault.sentence() for fault in self.faults))


def nearest(found: str, known: Sequence[str]) -> str:
    """``"Did you mean 'x'?"`` with the spelling in `allowed` that is closest to `found`; empty if none is close."""
    close = get_close_matches(found.lower(), [name.lower() for name in known], n=1, cutoff=0.5)
    if not close:
        return ""
    spelled = next(name for name in known if name.lower() == close[0])
    return f"Did you mean '{spelled}'?"
