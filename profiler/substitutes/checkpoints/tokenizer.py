"""A tokenizer of a given vocabulary size with a chat template, where a model's own is unavailable.

It has the words of the synthetic prompts (`profiler/training/data/tokenizer.py`), one token per word, and any other
word is one token too. So are newlines that follow each other: programs look for the token of a newline. Rows of a
user's own text therefore have about as many tokens as words.
"""

from typing import Any

from tokenizers import Regex, Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Sequence, Split

from profiler.training.data.tokenizer import EOS_TOKEN, PAD_TOKEN, WORDS, word

_OF_CHATS = ("<|im_start|>", "<|im_end|>", "<|eot_id|>", "<|endoftext|>")
"""Tokens of well-known chat formats: scripts ask for them by name."""

_SPECIAL = {
    name: f"<|{name.removesuffix('_token')}|>" for name in ("unk_token", "cls_token", "sep_token", "mask_token")
}
"""Tokens that encoders and their collators ask for."""

_NEWLINE = "\n"

_CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|> ' + message['role'] + ' ' }}"
    "{% set content = message['content'] if message['content'] is string else message['content'][0]['text'] %}"
    "{% if message['role'] == 'assistant' %}"
    "{% generation %}{{ content + ' <|im_end|> ' }}{% endgeneration %}"
    "{% else %}{{ content + ' <|im_end|> ' }}{% endif %}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|> assistant ' }}{% endif %}"
)
"""Role, content and an end for each message, as most chat models have them."""


def substitute_tokenizer(vocabulary_size: int, name: str, *, longest: int | None) -> Any:
    """Return a tokenizer with `vocabulary_size` tokens, if that is enough for its words; `longest` is the context."""
    from transformers import PreTrainedTokenizerFast

    known = [PAD_TOKEN, EOS_TOKEN, *(word(index) for index in range(WORDS)), *_OF_CHATS, *_SPECIAL.values(), _NEWLINE]
    filler = (f"<|{index}|>" for index in range(len(known), vocabulary_size))
    vocabulary = {token: index for index, token in enumerate([*known, *filler])}
    tokenizer = Tokenizer(WordLevel(vocab=vocabulary, unk_token=word(0)))
    tokenizer.pre_tokenizer = Sequence([Split(Regex(r"[^\S\n]+"), "removed"), Split(Regex(r"\n+"), "isolated")])
    made = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD_TOKEN,
        eos_token=EOS_TOKEN,
        model_max_length=longest or 1 << 30,
        clean_up_tokenization_spaces=False,
        # Without types of tokens, which models of the built-in families do not take.
        model_input_names=["input_ids", "attention_mask"],
        **_SPECIAL,
    )
    made.chat_template = _CHAT_TEMPLATE
    made.name_or_path = name
    return made
