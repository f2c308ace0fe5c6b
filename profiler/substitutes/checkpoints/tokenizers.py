"""`from_pretrained` of tokenizers, processors and image processors, answered by substitutes.

A substitute has the size of the vocabulary of the model's own, and a chat template. It has the words of the synthetic
prompts (`profiler/training/data/source_data.py`), one token per word, and any other word is one token too. So are
newlines that follow each other: programs look for the token of a newline. Rows of a user's own text therefore have
about as many tokens as words.
"""

from functools import wraps
from pathlib import Path
from types import ModuleType
from typing import Any

from profiler.seams.patching import Patch
from profiler.substitutes.options import Replaced

_FILES = (
    "tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "spiece.model", "sentencepiece.bpe.model",
    "tekken.json",
)  # fmt: skip
"""Files of which a tokenizer has at least one."""

_COUNT_FROM_TWO = ("roberta", "xlm-roberta", "camembert", "mpnet")
"""Types of models whose first position is 2, after that of padding: they have two fewer than their embeddings."""

_ARGUMENTS = ("padding_side", "truncation_side", "model_max_length", "pad_token", "eos_token", "bos_token")
"""Arguments of `from_pretrained` that the substitute takes over."""


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


def tokenizer_patches(owner: Any, replaced: Replaced) -> list[Patch]:
    """Return the patch of one class of transformers that loads tokenizers."""
    return [(owner, "from_pretrained", classmethod(_loading(owner, replaced)))]


def _loading(owner: Any, replaced: Replaced) -> Any:
    load = owner.from_pretrained.__func__

    def from_pretrained(cls: Any, pretrained_model_name_or_path: Any, *args: Any, **kwargs: Any) -> Any:
        name = str(pretrained_model_name_or_path)
        if _is_here(name):
            return load(cls, pretrained_model_name_or_path, *args, **kwargs)
        vocabulary, longest = _sizes(name, str(kwargs.get("subfolder") or ""))
        made = substitute_tokenizer(vocabulary, name, longest=longest)
        for key in _ARGUMENTS:
            if kwargs.get(key) is not None:
                setattr(made, key, kwargs[key])
        replaced.add("tokenizer of", name, "one token per word")
        return made

    return from_pretrained


def response_patches(utils: ModuleType) -> list[Patch]:
    """Return the patch of trl's `chat_template_utils`: answers of a substitute are read as those of Qwen3.

    trl knows how to read an answer by the chat template of its model, and refuses a template that it does not know.
    What it reads may begin with the last words of the prompt.
    """
    if not all(hasattr(utils, name) for name in ("add_response_schema", "qwen3_chat_template")):
        return []  # an earlier trl
    add = utils.add_response_schema

    @wraps(add)
    def added(processing_class: Any) -> Any:
        own = processing_class.chat_template
        if own != _CHAT_TEMPLATE:
            return add(processing_class)
        processing_class.chat_template = utils.qwen3_chat_template
        try:
            return add(processing_class)
        finally:
            processing_class.chat_template = own

    return [(utils, "add_response_schema", added)]


def substitute_tokenizer(vocabulary_size: int, name: str, *, longest: int | None) -> Any:
    """Return a tokenizer with `vocabulary_size` tokens, if that is enough for its words; `longest` is the context."""
    from tokenizers import Regex, Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Sequence, Split
    from transformers import PreTrainedTokenizerFast

    from profiler.training.data.source_data import EOS_TOKEN, PAD_TOKEN, WORDS, word

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


def _sizes(name: str, folder: str) -> tuple[int, int | None]:
    """Return the size of the vocabulary and the context of a model, or of the encoder that a tokenizer is next to."""
    from transformers import AutoConfig, CLIPTextConfig

    encoder = folder.replace("tokenizer", "text_encoder")
    if encoder != folder:
        config: Any = CLIPTextConfig.from_pretrained(name, subfolder=encoder)
    else:
        config = AutoConfig.from_pretrained(name).get_text_config()
    longest = getattr(config, "max_position_embeddings", None) or getattr(config, "n_positions", None)
    if longest is not None and config.model_type in _COUNT_FROM_TWO:
        longest -= 2
    return config.vocab_size, longest


def _is_here(name: str) -> bool:
    """Return whether a file of the tokenizer is in the folder, in the local cache, or at a hub that answers."""
    folder = Path(name)
    if folder.is_file():
        return True
    if folder.is_dir():
        return any((folder / file).is_file() for file in _FILES)
    return any(_from_hub(name, file) for file in _FILES)


def _from_hub(name: str, file: str) -> bool:
    from transformers.utils import cached_file

    try:
        return cached_file(name, file, _raise_exceptions_for_missing_entries=False) is not None
    except OSError:
        return False


def image_processor_patches(module: ModuleType, replaced: Replaced) -> list[Patch]:
    """Return the patch of the class that finds image processors."""
    owner = module.AutoImageProcessor
    load = owner.from_pretrained.__func__
    return [
        (
            owner,
            "from_pretrained",
            classmethod(_loading_image_processor(load, module.IMAGE_PROCESSOR_MAPPING, replaced)),
        )
    ]


def _loading_image_processor(load: Any, classes: Any, replaced: Replaced) -> Any:
    def from_pretrained(cls: Any, pretrained_model_name_or_path: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return load(cls, pretrained_model_name_or_path, *args, **kwargs)
        except OSError:
            made = _made(str(pretrained_model_name_or_path), classes)
            if made is None:
                raise
            replaced.add(
                "image processor of", str(pretrained_model_name_or_path), f"the defaults of {type(made).__name__}"
            )
            return made

    return from_pretrained


def _made(name: str, classes: Any) -> Any:
    """Return a processor for the configuration of a model, with the size of its images; None if its type has none."""
    from transformers import AutoConfig

    config = AutoConfig.from_pretrained(name)
    try:
        found = classes[type(config)]
    except KeyError:
        return None
    kinds = (found.get("torchvision"), found.get("pil")) if isinstance(found, dict) else tuple(found)[::-1]
    kind = next((each for each in kinds if each is not None), None)
    if kind is None:
        return None
    made = kind()
    pixels = getattr(config, "image_size", None)
    if isinstance(pixels, int) and "height" in (made.size or ()):
        made.size = {"height": pixels, "width": pixels}
    return made
