"""What the substitutes are like."""

from dataclasses import dataclass
from pathlib import Path

from profiler.domain.runs.script import COMPLETION_TOKENS, PROMPT_TOKENS, ScriptWeights


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
