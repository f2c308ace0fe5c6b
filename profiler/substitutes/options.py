"""What the substitutes are like, and what was replaced in a run."""

import json
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from profiler.domain.runs.other_runs import COMPLETION_TOKENS, PROMPT_TOKENS, ScriptWeights
from profiler.storage.foreign.hub import hub_problem


@dataclass(frozen=True, kw_only=True)
class SubstituteOptions:
    """The options of the substitutes."""

    weights: ScriptWeights = ScriptWeights.RANDOM
    with_values: bool = False
    """Whether weights get random values. False where nothing is computed: they are zeros, which take no host memory."""
    prompt_tokens: int = PROMPT_TOKENS
    """Tokens of each prompt in the rows of a data set that is replaced."""
    completion_tokens: int = COMPLETION_TOKENS
    """Tokens of each completion; a text has those of a prompt and of a completion."""
    rows: int = 1024
    """Rows of each split."""
    columns: tuple[str, ...] = ()
    """Columns of a data set whose columns are not known; empty for those that the script reads."""
    script: Path | None = None
    """The script that runs, in whose source the columns of unknown data sets are looked up."""
    arguments: tuple[str, ...] = ()
    """The script's arguments."""
    has_flash_attn: bool = False
    """Whether the package flash-attn is provided where it is asked for and not installed."""
    folder: Path | None = None
    """Folder in which the processes of a job share folders of models, and what was replaced; None for one script."""

    @property
    def text_tokens(self) -> int:
        """Tokens of a text that is a prompt and its completion."""
        return self.prompt_tokens + self.completion_tokens


_VARIABLE = "EMULATED_SUBSTITUTES"
_OF_A_JOB = ("weights", "prompt_tokens", "completion_tokens")


def job_variables(options: SubstituteOptions) -> dict[str, str]:
    """Return the environment variables by which each process of a job replaces what the machine lacks."""
    values = {name: getattr(options, name) for name in _OF_A_JOB} | {"folder": str(options.folder)}
    # The hub is asked once: each process would wait for one that does not answer.
    return {_VARIABLE: json.dumps(values)} | ({"HF_HUB_OFFLINE": "1"} if hub_problem() else {})


def job_options(variable: str) -> SubstituteOptions:
    """Return the options that `job_variables` has written."""
    values = json.loads(variable)
    weights, folder = ScriptWeights(values.pop("weights")), Path(values.pop("folder"))
    return SubstituteOptions(weights=weights, folder=folder, **values)


_NOTES = "substitutes"
"""File in the folder of a job."""


class Replaced:
    """The names of everything that was replaced, in the order of the script's first use.

    Args:
        notes: File of a job, to which each replacement is appended: its processes may be killed.
    """

    def __init__(self, notes: Path | None = None) -> None:
        self._by_kind: dict[str, dict[str, str]] = {}
        self._notes = notes

    @classmethod
    def of_job(cls, folder: Path) -> Self:
        """Return what the processes of the job in this folder have replaced."""
        found, notes = cls(), folder / _NOTES
        for line in notes.read_text().splitlines() if notes.is_file() else ():
            with suppress(ValueError):  # a process was killed in between
                kind, name, by = json.loads(line)
                if not Path(name).is_relative_to(folder):  # else a folder that was made here for a name
                    found.add(kind, name, by)
        return found

    @classmethod
    def noted_in(cls, folder: Path | None) -> Self:
        """Return what is to be replaced in one process of the job in this folder; None: in a process alone."""
        return cls(None if folder is None else folder / _NOTES)

    def add(self, kind: str, name: str, by: str) -> None:
        """Note that `name` was replaced by `by`; `kind` is a plural such as "weights"."""
        known = self._by_kind.setdefault(kind, {})
        if name in known:
            return
        known[name] = by
        if self._notes is not None:
            with self._notes.open("a") as file:
                file.write(f"{json.dumps((kind, name, by))}\n")

    def __bool__(self) -> bool:
        return bool(self._by_kind)

    def phrases(self) -> tuple[str, ...]:
        """Return one phrase per replacement, such as ``"tokenizer of tiny (one token per word)"``."""
        return tuple(
            f"{kind} {name} ({by})" for kind, replacements in self._by_kind.items() for name, by in replacements.items()
        )

    def line(self) -> str:
        """Return ``Substitutes: weights of A (random); data set B (...)``; empty if nothing was replaced."""
        return f"Substitutes: {'; '.join(self.phrases())}" if self else ""
