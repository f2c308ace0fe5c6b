"""The reward: a free Python function. Memory does not depend on what it says."""

from typing import Any


def count_words(completions: list[str], **_: Any) -> list[float]:
    """The number of words in each completion."""
    return [float(len(completion.split())) for completion in completions]
