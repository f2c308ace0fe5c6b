"""The reward: a Python function that costs nothing. Memory does not depend on its values."""

from typing import Any


def count_words(completions: list[Any], **_: Any) -> list[float]:
    """Return the number of words in each completion, a text or the messages of a conversation."""
    return [float(len(str(completion).split())) for completion in completions]
