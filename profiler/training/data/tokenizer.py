"""A tokenizer without a download: one token per word."""

from typing import Any

from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from transformers import PreTrainedTokenizerFast

PAD_TOKEN = "<pad>"
EOS_TOKEN = "<eos>"
WORDS = 64
"""Words of the vocabulary."""
_FIRST_WORD = 2


def word(index: int) -> str:
    """Return one of the 64 words of the vocabulary."""
    return f"w{index % WORDS}"


def token(index: int) -> int:
    """Return the token of `word(index)`."""
    return index % WORDS + _FIRST_WORD


def build_tokenizer() -> Any:
    """Return a word-level tokenizer of 66 tokens: padding, end of sequence and 64 words.

    Ids above its vocabulary, which a random model samples, decode to nothing. Memory does not depend on the words.
    """
    vocabulary = {PAD_TOKEN: 0, EOS_TOKEN: 1} | {word(index): token(index) for index in range(WORDS)}
    tokenizer = Tokenizer(WordLevel(vocab=vocabulary, unk_token=PAD_TOKEN))
    tokenizer.pre_tokenizer = WhitespaceSplit()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token=PAD_TOKEN, eos_token=EOS_TOKEN, padding_side="left"
    )
