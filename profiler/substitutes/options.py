"""What the substitutes are like, and what was replaced in a run."""

from dataclasses import dataclass
from pathlib import Path

from profiler.domain.runs.other_runs import COMPLETION_TOKENS, PROMPT_TOKENS, ScriptWeights


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

    @property
    def text_tokens(self) -> int:
        """Tokens of a text that is a prompt and its completion."""
        return self.prompt_tokens + self.completion_tokens


class Replaced:
    """The names of everything that was replaced, in the order of the script's first use."""

    def __init__(self) -> None:
        self._by_kind: dict[str, dict[str, str]] = {}

    def add(self, kind: str, name: str, by: str) -> None:
        """Note that `name` was replaced by `by`; `kind` is a plural such as "weights"."""
        self._by_kind.setdefault(kind, {}).setdefault(name, by)

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
