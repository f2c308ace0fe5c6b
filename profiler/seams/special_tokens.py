"""Tokens that mean something to a program: ends of text, padding, images. A token that is drawn is none of them.

Where no network computes, a sampled token is any token. If it ended a text, the draw would decide how long the text is.
"""

import gc
import sys
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Any

_KNOWING = (
    ("transformers.configuration_utils", "PreTrainedConfig"),
    ("transformers.generation.configuration_utils", "GenerationConfig"),
    ("transformers.tokenization_utils_base", "PreTrainedTokenizerBase"),
    ("vllm.sampling_params", "SamplingParams"),
)
"""Classes whose objects name such tokens."""

_NAMES = ("eos_token_id", "pad_token_id", "stop_token_ids", "all_special_ids", "_eos_token_id", "_all_stop_token_ids")
"""What they are asked for; the last two are private fields of vLLM's `SamplingParams`."""

_ENDINGS = ("_token_id", "_token_ids", "_token_index")
"""How a configuration names further ones, such as `image_token_id`."""


class SpecialTokens:
    """The special tokens of all models, tokenizers and requests in this process.

    Looks at the living objects before draws 1, 2, 4, 8 and so on, and before the next one after `forget`: a look takes
    some tenths of a second. Which draws look does not depend on time.
    """

    def __init__(self) -> None:
        self.tokens: frozenset[int] = frozenset()
        self.vocabularies: frozenset[int] = frozenset()
        """Sizes."""
        self._added: frozenset[int] = frozenset()
        self._draws = 0
        self._is_current = False

    def forget(self) -> None:
        """Look again before the next draw, as when a generation begins."""
        self._is_current = False

    def add(self, source: Any) -> None:
        """Add the tokens that an object names, which may be gone when the next draw looks."""
        self._added |= frozenset(tokens_of(source))
        self.forget()

    def look(self) -> bool:
        """Take note of a draw that follows, and look at the living objects if this is due; return whether it was."""
        self._draws += 1
        if self._is_current and self._draws & (self._draws - 1):
            return False
        classes = _classes()
        # By its type: an object may answer for the class of another one that is gone.
        found = [each for each in gc.get_objects() if issubclass(type(each), classes)]
        self.tokens = self._added.union(*map(tokens_of, found))
        self.vocabularies = frozenset(size for each in found if (size := _vocabulary(each)))
        self._is_current = True
        return True

    def ordinary(self, vocabulary: int | None = None) -> int:
        """Return the token in the middle of a vocabulary, or the next one that is not special.

        Args:
            vocabulary: Its size; by default that of the smallest one that is known.
        """
        size = vocabulary or min(self.vocabularies, default=_UNKNOWN)
        middle = size // 2
        candidates = chain(range(middle, size), range(middle))
        return next((token for token in candidates if token not in self.tokens), middle)


_UNKNOWN = 256
"""Half of it is an ordinary token of every tokenizer that was looked at."""


def tokens_of(source: Any) -> Iterator[int]:
    """Return the tokens that an object names, by the attributes of `_NAMES` and others that end so."""
    more = [name for name in getattr(source, "__dict__", {}) if name.endswith(_ENDINGS)]
    for name in dict.fromkeys((*_NAMES, *more)):
        found = getattr(source, name, None)
        for token in found if isinstance(found, Iterable) and not isinstance(found, str) else (found,):
            if isinstance(token, int) and not isinstance(token, bool):
                yield token


def _classes() -> tuple[type, ...]:
    found = (getattr(sys.modules.get(module), name, None) for module, name in _KNOWING)
    return tuple(each for each in found if isinstance(each, type))


def _vocabulary(source: Any) -> int | None:
    size = getattr(source, "vocab_size", None)
    return size if isinstance(size, int) else None
