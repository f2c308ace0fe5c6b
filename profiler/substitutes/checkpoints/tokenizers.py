"""`from_pretrained` of tokenizers, processors and image processors, answered by substitutes."""

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


def tokenizer_patches(owner: Any, replaced: Replaced) -> list[Patch]:
    """Return the patch of one class of transformers that loads tokenizers."""
    return [(owner, "from_pretrained", classmethod(_loading(owner, replaced)))]


def _loading(owner: Any, replaced: Replaced) -> Any:
    load = owner.from_pretrained.__func__

    def from_pretrained(cls: Any, pretrained_model_name_or_path: Any, *args: Any, **kwargs: Any) -> Any:
        name = str(pretrained_model_name_or_path)
        if _is_here(name):
            return load(cls, pretrained_model_name_or_path, *args, **kwargs)
        from profiler.substitutes.checkpoints.tokenizer import substitute_tokenizer

        vocabulary, longest = _sizes(name, str(kwargs.get("subfolder") or ""))
        made = substitute_tokenizer(vocabulary, name, longest=longest)
        for key in _ARGUMENTS:
            if kwargs.get(key) is not None:
                setattr(made, key, kwargs[key])
        replaced.add("tokenizer of", name, "one token per word")
        return made

    return from_pretrained


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
