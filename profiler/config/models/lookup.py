"""Names of the built-in models, which need neither a disk nor a network."""

import re
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import PurePosixPath

from profiler.config.models.architecture import read_architecture
from profiler.domain.architectures.architecture import Architecture
from profiler.domain.errors import UsageError, nearest
from profiler.domain.models.builtin_models import BUILTIN_MODELS, REPUBLISHERS, VISION_MODELS, find_builtin


def canonical_model(model: str) -> str:
    """Return the built-in name of `model`, a name or a hub id in any case; `model` itself if it is not built in."""
    builtin = find_builtin(model)
    return builtin.name if builtin else model


def builtin_architecture(model: str) -> Architecture | None:
    """Return the architecture of a built-in model by its name or hub id; None for any other model."""
    builtin = find_builtin(model)
    return read_architecture(builtin.config, model=builtin.name) if builtin else None


_OTHER_TENSORS = frozenset({"vl", "omni", "audio", "gptq", "awq", "bnb", "fp8", "int4", "int8", "gguf", "moe"})
"""Words in a folder's name that say that its tensors are not those of the model it is named after."""


_FOLDERS = frozenset(
    """
    base_model base_models ckpt ckpts checkpoint checkpoints data hf_models llm llm_model llm_models llms local_models
    model models output outputs pretrain pretrained pretrained_model pretrained_models pretrain_models saves weights
    """.split()  # noqa: SIM905
)
"""First parts of paths that are folders of a project, and no owners on the hub."""


_MIRRORS = frozenset({"ai-modelscope", "llm-research", "openai-mirror"})
"""Owners on ModelScope, the hub of ms-swift, of copies of models whose own owner is elsewhere."""


def _may_be_folder(model: str) -> bool:
    """Return whether a model that is not built in has the form of a folder and none of a hub id, ``owner/name``.

    A single word is one as well: hub ids without an owner are of a few old models.
    """
    parts = PurePosixPath(model).parts
    return model.startswith(("/", ".", "~", "$")) or len(parts) != len(("owner", "name")) or parts[0] in _FOLDERS


def taken_by_name(model: object) -> str | None:
    """Return the built-in model that a folder of another machine, or a copy on another hub, is; None for other models.

    Whether the folder is on this machine is for the caller to say.
    """
    if not isinstance(model, str) or find_builtin(model) is not None:
        return None
    if _may_be_folder(model):
        return builtin_of_folder(model)
    owner, _, name = model.partition("/")
    return _by_bare_name().get(_bare(_words(name))) if owner.lower() in _MIRRORS else None


def taken_text(builtin: str, model: object) -> str:
    """Return the note about it."""
    return f"model={builtin} (by its name, because there is no {model} here)"


def builtin_of_folder(path: str) -> str | None:
    """Return the built-in model that a folder is named after, by the last part of `path` that names one; None for none.

    Punctuation and case do not count, and the name may have words before and after that of the model.

    By hand, ``"/models/Qwen2.5-7B-Instruct"`` and ``"/data/GSM8k_Qwen25_7B/exp052"``: ``"qwen2.5-7b"``.
    """
    for part in reversed(PurePosixPath(path).parts):
        words = _words(part)
        # The most specific name first: Qwen2.5-7B-Instruct before Qwen2.5-7B.
        spans = sorted({(a, b) for a in range(len(words)) for b in range(a + 1, len(words) + 1)}, key=_length)
        for first, last in reversed(spans):
            model = _by_bare_name().get(_bare(words[first:last]))
            if model is not None:
                return None if _OTHER_TENSORS & set(words) else model
    return None


def _length(span: tuple[int, int]) -> int:
    return span[1] - span[0]


@cache
def _by_bare_name() -> Mapping[tuple[str, str], str]:
    """Return built-in names by what `_bare` leaves of the last parts of their hub ids, or of all of a republisher's."""
    return {
        _bare(_words(hub_id if hub_id.startswith(REPUBLISHERS) else hub_id.rpartition("/")[2])): model.name
        for model in BUILTIN_MODELS.values()
        for hub_id in model.hub_ids
    }


def suggested_model(model: str, known: Sequence[str]) -> str:
    """Return ``"Did you mean 'x'?"`` with a name in `known` that is near and of a model of the same size; else nothing.

    A name of another size, of a mixture of experts or of a model with images is another model, not a slip of the
    pen: Qwen3-30B-A3B is not Qwen3-0.6B.
    """
    own = _words(model)
    same = [name for name in known if _kinds(own) == _kinds(_words(name)) and _is_of_size(_size_of(model), name)]
    return nearest(model, same)


_SIZES = frozenset({"nano", "tiny", "mini", "small", "medium", "large", "xl"})
"""Words for a size in a name that states no number: Phi-3-medium is not Phi-3.5-mini."""

_LARGEST_RATIO = 1.25
"""Largest ratio of parameters of models of one size class (our choice): Qwen2.5-7B has 7.6."""


def _kinds(words: Sequence[str]) -> frozenset[str]:
    """Return the words of a name that say that its tensors are others, its size, or that it is a mixture of experts."""
    experts = {"moe" for word in words if re.fullmatch(r"a\d+b|\d+x\d+b|\d+e", word)}
    return frozenset((_OTHER_TENSORS | _SIZES) & set(words)) | experts


def _size_of(model: str) -> float | None:
    """Return the parameters that a name states; None if it states none. ``"Qwen3-30B-A3B"`` has 30e9."""
    found = re.search(r"(?<![a-z0-9.])(\d+(?:\.\d+)?)([bm])(?![a-z0-9])", model.lower())
    return None if found is None else float(found[1]) * (1e9 if found[2] == "b" else 1e6)


def _is_of_size(parameters: float | None, name: str) -> bool:
    """Return whether a built-in name is of a size, by its parameters or as it states them: gemma-2-2b has 2.6."""
    builtin = find_builtin(name)
    if parameters is None or builtin is None:
        return True
    sizes = (builtin.parameters, _size_of(name))
    return any(size and max(parameters, size) <= _LARGEST_RATIO * min(parameters, size) for size in sizes)


def _bare(words: Sequence[str]) -> tuple[str, str]:
    """Return the letters and digits of a name, and its size apart: Qwen2-57B is not Qwen2.5-7B."""
    return "".join(words), next((word for word in reversed(words) if re.fullmatch(r"\d+[mb]", word)), "")


def _words(text: str) -> list[str]:
    return re.findall("[a-z0-9]+", text.lower())


def checkpoint(model: str) -> str:
    """Return the hub id of the base model of a built-in name; any other model is returned as it is."""
    builtin = BUILTIN_MODELS.get(model.lower()) or VISION_MODELS.get(model.lower())
    return builtin.hub_ids[0] if builtin and builtin.hub_ids else model


_EARLY_OWNERS: Mapping[str, str] = {
    "openai-community": "gpt2 gpt2-medium gpt2-large gpt2-xl openai-gpt",
    "distilbert": "distilgpt2 distilbert-base-uncased distilbert-base-cased distilroberta-base",
    "google-bert": "bert-base-uncased bert-base-cased bert-large-uncased bert-large-cased",
    "FacebookAI": "roberta-base roberta-large xlm-roberta-base xlm-roberta-large",
    "google-t5": "t5-small t5-base t5-large t5-3b t5-11b",
}
"""Names without an owner that the hub still answers, each by the owner to whom it redirects them."""
_EARLY_NAMES = {name: f"{owner}/{name}" for owner, names in _EARLY_OWNERS.items() for name in names.split()}


def hub_id_of(model: str) -> str:
    """Return the hub id of a model that the hub has had without an owner; any other name as it is."""
    return _EARLY_NAMES.get(model, model)


def remembered(architecture_of: Callable[[str], Architecture]) -> Callable[[str], Architecture]:
    """Return `architecture_of` with each model read once, also if it cannot be read."""
    found: dict[str, Architecture | UsageError] = {}

    def read(model: str) -> Architecture:
        if model not in found:
            try:
                found[model] = architecture_of(model)
            except UsageError as error:
                found[model] = error
        result = found[model]
        if isinstance(result, UsageError):
            raise UsageError(result.faults)
        return result

    return read
