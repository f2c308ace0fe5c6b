"""The reward: a Python function that costs nothing. Memory does not depend on its values."""

from typing import Any


def count_words(completions: list[str], **_: Any) -> list[float]:
    """Return the number of words in each completion."""
    return [float(len(completion.split())) for completion in completions]
