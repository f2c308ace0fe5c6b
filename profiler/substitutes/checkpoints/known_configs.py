"""The configuration of a model that a script names: known, built in, in a local folder, or assumed.

Configurations of well-known models that are not built in, as differences from the defaults of transformers' classes.

Source: the `config.json` of each name on the hub. Only scripts use them: estimates and trials have the built-in models.
The parameter counts are those of the checkpoints; a test builds each model and counts.

A model that nobody here knows has the defaults of its class in transformers, and is named as assumed. A name that
states a number of parameters, such as ``opt-2.7b``, gets them only if the defaults have about as many.

Libraries that look for files of the hub, as vLLM does, find a folder with the configuration, which the processes of one
job share. It has no tokenizer, which the process that needs one makes, and no weights: those of vLLM are random with
`load_format=dummy`.
"""

import json
import os
import re
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from profiler.domain.models.builtin_models import find_builtin
from profiler.seams.patching import Patch
from profiler.storage.foreign.hub import hub_problem
from profiler.substitutes.options import Replaced


@dataclass(frozen=True, kw_only=True)
class KnownConfig:
    """The configuration of one model, or of one part of a pipeline."""

    architecture: str
    """Class of transformers whose parameters are `parameters`."""
    parameters: int
    fields: Mapping[str, Any]
    """With the model's type."""


def _known(architecture: str, parameters: int, model_type: str, **fields: Any) -> KnownConfig:
    return KnownConfig(architecture=architecture, parameters=parameters, fields={"model_type": model_type, **fields})


def _gpt2(parameters: int, width: int, layers: int, heads: int) -> KnownConfig:
    return _known("GPT2LMHeadModel", parameters, "gpt2", n_embd=width, n_layer=layers, n_head=heads)


def _bert(architecture: str, parameters: int, width: int, layers: int, heads: int, **fields: Any) -> KnownConfig:
    sizes = {"hidden_size": width, "num_hidden_layers": layers, "num_attention_heads": heads}
    return _known(architecture, parameters, "bert", intermediate_size=4 * width, **sizes, **fields)


def _roberta(parameters: int, width: int, layers: int, heads: int) -> KnownConfig:
    sizes = {"hidden_size": width, "num_hidden_layers": layers, "num_attention_heads": heads}
    positions = {"vocab_size": 50265, "max_position_embeddings": 514, "type_vocab_size": 1}
    return _known("RobertaForMaskedLM", parameters, "roberta", intermediate_size=4 * width, **sizes, **positions)


def _opt(parameters: int, width: int, layers: int, heads: int, **fields: Any) -> KnownConfig:
    sizes = {"hidden_size": width, "num_hidden_layers": layers, "num_attention_heads": heads, "ffn_dim": 4 * width}
    projected = {"word_embed_proj_dim": width, **fields}
    return _known("OPTForCausalLM", parameters, "opt", **sizes, **projected)


def _pythia(parameters: int, width: int, layers: int, heads: int, vocabulary: int = 50304) -> KnownConfig:
    sizes = {"hidden_size": width, "num_hidden_layers": layers, "num_attention_heads": heads}
    return _known(
        "GPTNeoXForCausalLM", parameters, "gpt_neox", intermediate_size=4 * width, vocab_size=vocabulary, **sizes
    )


def _t5(parameters: int, width: int, inner: int, layers: int, heads: int, **fields: Any) -> KnownConfig:
    sizes = {"d_model": width, "d_ff": inner, "num_layers": layers, "num_decoder_layers": layers, "num_heads": heads}
    return _known("T5ForConditionalGeneration", parameters, "t5", d_kv=64, **sizes, **fields)


def _smollm(parameters: int, width: int, inner: int, layers: int, heads: int, kv_heads: int) -> KnownConfig:
    sizes = {"hidden_size": width, "intermediate_size": inner, "num_hidden_layers": layers}
    attention = {"num_attention_heads": heads, "num_key_value_heads": kv_heads, "tie_word_embeddings": True}
    return _known("LlamaForCausalLM", parameters, "llama", vocab_size=49152, **sizes, **attention)


_GATED = {"feed_forward_proj": "gated-gelu"}
"""Of T5 1.1. Their checkpoints have an output layer of their own; transformers 5 ties it to the embeddings, and
`parameters` counts as it does."""

_CONFIGS: Mapping[str, KnownConfig] = {
    "openai-community/gpt2": _gpt2(124_439_808, 768, 12, 12),
    "openai-community/gpt2-medium": _gpt2(354_823_168, 1024, 24, 16),
    "openai-community/gpt2-large": _gpt2(774_030_080, 1280, 36, 20),
    "openai-community/gpt2-xl": _gpt2(1_557_611_200, 1600, 48, 25),
    "distilbert/distilgpt2": _gpt2(81_912_576, 768, 6, 12),
    "google-bert/bert-base-uncased": _bert("BertModel", 109_482_240, 768, 12, 12, vocab_size=30522),
    "google-bert/bert-base-cased": _bert("BertModel", 108_310_272, 768, 12, 12, vocab_size=28996),
    "google-bert/bert-large-uncased": _bert("BertModel", 335_141_888, 1024, 24, 16, vocab_size=30522),
    "sentence-transformers/all-MiniLM-L6-v2": _bert("BertModel", 22_713_216, 384, 6, 12),
    "nreimers/MiniLM-L6-H384-uncased": _bert("BertModel", 22_713_216, 384, 6, 12),
    "microsoft/MiniLM-L12-H384-uncased": _bert("BertModel", 33_360_000, 384, 12, 12),
    "distilbert/distilbert-base-uncased": _known("DistilBertModel", 66_362_880, "distilbert"),
    "FacebookAI/roberta-base": _roberta(124_697_433, 768, 12, 12),
    "FacebookAI/roberta-large": _roberta(355_412_057, 1024, 24, 16),
    "distilbert/distilroberta-base": _roberta(82_170_201, 768, 6, 12),
    "microsoft/mpnet-base": _known("MPNetModel", 109_486_464, "mpnet", max_position_embeddings=514),
    "sentence-transformers/all-mpnet-base-v2": _known("MPNetModel", 109_486_464, "mpnet", max_position_embeddings=514),
    "facebook/opt-125m": _opt(125_239_296, 768, 12, 12),
    "facebook/opt-350m": _opt(
        331_196_416, 1024, 24, 16, word_embed_proj_dim=512, do_layer_norm_before=False
    ),
    "facebook/opt-1.3b": _opt(1_315_758_080, 2048, 24, 32),
    "facebook/opt-6.7b": _opt(6_658_473_984, 4096, 32, 32),
    "EleutherAI/pythia-70m": _pythia(70_426_624, 512, 6, 8),
    "EleutherAI/pythia-160m": _pythia(162_322_944, 768, 12, 12),
    "EleutherAI/pythia-410m": _pythia(405_334_016, 1024, 24, 16),
    "EleutherAI/pythia-1b": _pythia(1_011_781_632, 2048, 16, 8),
    "EleutherAI/pythia-1.4b": _pythia(1_414_647_808, 2048, 24, 16),
    "bigscience/bloomz-560m": _known(
        "BloomForCausalLM", 559_214_592, "bloom", hidden_size=1024, n_layer=24, n_head=16, vocab_size=250880
    ),
    "google-t5/t5-small": _t5(60_506_624, 512, 2048, 6, 8),
    "google-t5/t5-base": _t5(222_903_552, 768, 3072, 12, 12),
    "google-t5/t5-large": _t5(737_668_096, 1024, 4096, 24, 16),
    "google/flan-t5-small": _t5(60_511_616, 512, 1024, 8, 6, **_GATED),
    "google/flan-t5-base": _t5(222_903_552, 768, 2048, 12, 12, **_GATED),
    "google/flan-t5-large": _t5(750_251_008, 1024, 2816, 24, 16, **_GATED),
    "google/vit-base-patch16-224": _known("ViTModel", 86_389_248, "vit"),
    "google/vit-base-patch16-224-in21k": _known("ViTModel", 86_389_248, "vit"),
    "microsoft/phi-2": _known(
        "PhiForCausalLM", 2_779_683_840, "phi", hidden_size=2560, num_hidden_layers=32, num_attention_heads=32,
        intermediate_size=10240, partial_rotary_factor=0.4,
    ),
    "HuggingFaceTB/SmolLM-135M": _smollm(134_515_008, 576, 1536, 30, 9, 3),
    "HuggingFaceTB/SmolLM-360M": _smollm(361_821_120, 960, 2560, 32, 15, 5),
    "HuggingFaceTB/SmolLM-1.7B": _smollm(1_711_376_384, 2048, 8192, 24, 32, 32),
    "huggyllama/llama-7b": _known("LlamaForCausalLM", 6_738_415_616, "llama"),
    "baffo32/decapoda-research-llama-7B-hf": _known("LlamaForCausalLM", 6_738_415_616, "llama"),
}  # fmt: skip

_CLIP = {
    "model_type": "clip_text_model", "vocab_size": 49408, "max_position_embeddings": 77, "hidden_size": 768,
    "intermediate_size": 3072, "num_hidden_layers": 12, "num_attention_heads": 12, "projection_dim": 768,
    "hidden_act": "quick_gelu", "bos_token_id": 0, "eos_token_id": 2,
}  # fmt: skip
_CLIP_H = {
    **_CLIP, "hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 23, "num_attention_heads": 16,
    "projection_dim": 512, "hidden_act": "gelu",
}  # fmt: skip
_CLIP_G = {
    **_CLIP, "hidden_size": 1280, "intermediate_size": 5120, "num_hidden_layers": 32, "num_attention_heads": 20,
    "projection_dim": 1280, "hidden_act": "gelu",
}  # fmt: skip
_VAE = {
    "_class_name": "AutoencoderKL", "block_out_channels": (128, 256, 512, 512), "layers_per_block": 2,
    "down_block_types": ("DownEncoderBlock2D",) * 4, "up_block_types": ("UpDecoderBlock2D",) * 4,
    "latent_channels": 4, "sample_size": 512,
}  # fmt: skip
_NOISE = {
    "_class_name": "DDPMScheduler", "beta_start": 0.00085, "beta_end": 0.012, "beta_schedule": "scaled_linear",
    "num_train_timesteps": 1000,
}  # fmt: skip
_UNET = {"_class_name": "UNet2DConditionModel", "sample_size": 64, "cross_attention_dim": 768}
_UNET_2 = {
    "_class_name": "UNet2DConditionModel", "sample_size": 96, "cross_attention_dim": 1024,
    "attention_head_dim": (5, 10, 20, 20), "use_linear_projection": True,
}  # fmt: skip
_UNET_XL = {
    "_class_name": "UNet2DConditionModel", "sample_size": 128, "cross_attention_dim": 2048,
    "block_out_channels": (320, 640, 1280), "attention_head_dim": (5, 10, 20),
    "down_block_types": ("DownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D"),
    "up_block_types": ("CrossAttnUpBlock2D", "CrossAttnUpBlock2D", "UpBlock2D"),
    "transformer_layers_per_block": (1, 2, 10), "use_linear_projection": True, "addition_embed_type": "text_time",
    "addition_time_embed_dim": 256, "projection_class_embeddings_input_dim": 2816,
}  # fmt: skip


def _encoder(fields: Mapping[str, Any], architecture: str = "CLIPTextModel") -> dict[str, Any]:
    return {**fields, "architectures": [architecture]}


_PIPELINE_1 = {"text_encoder": _encoder(_CLIP), "vae": _VAE, "unet": _UNET, "scheduler": _NOISE}
_PIPELINE_2 = {
    "text_encoder": _encoder(_CLIP_H), "vae": {**_VAE, "sample_size": 768}, "unet": _UNET_2,
    "scheduler": {**_NOISE, "prediction_type": "v_prediction"},
}  # fmt: skip
_PIPELINE_XL = {
    "text_encoder": _encoder(_CLIP), "text_encoder_2": _encoder(_CLIP_G, "CLIPTextModelWithProjection"),
    "vae": {**_VAE, "sample_size": 1024, "scaling_factor": 0.13025, "force_upcast": True}, "unet": _UNET_XL,
    "scheduler": _NOISE,
}  # fmt: skip

_PIPELINES: Mapping[str, Mapping[str, Mapping[str, Any]]] = {
    "CompVis/stable-diffusion-v1-4": _PIPELINE_1,
    "runwayml/stable-diffusion-v1-5": _PIPELINE_1,
    "stable-diffusion-v1-5/stable-diffusion-v1-5": _PIPELINE_1,
    "stabilityai/stable-diffusion-2-1": _PIPELINE_2,
    "stabilityai/stable-diffusion-xl-base-1.0": _PIPELINE_XL,
    "madebyollin/sdxl-vae-fp16-fix": {"": _PIPELINE_XL["vae"]},
}
"""Pipelines of diffusers, by folder; a name with one part has it in the folder itself."""

_BY_NAME = {name.lower(): known for name, known in _CONFIGS.items()}
_BY_TAIL = {name.partition("/")[2].lower(): known for name, known in _CONFIGS.items()}
_PARTS = {name.lower(): parts for name, parts in _PIPELINES.items()}


def known_config(name: str) -> dict[str, Any] | None:
    """Return the configuration of a model of this name, with or without its owner; None if it is not known."""
    found = _BY_NAME.get(name.lower()) or _BY_TAIL.get(name.lower())
    return None if found is None else {**found.fields, "architectures": [found.architecture]}


def known_part(name: str, folder: str) -> dict[str, Any] | None:
    """Return the configuration of a folder of a pipeline; None if it is not known."""
    found = _PARTS.get(name.lower(), {}).get(folder)
    return None if found is None else dict(found)


def known_models() -> Mapping[str, KnownConfig]:
    """Return all models, by name."""
    return _CONFIGS


def builtin_config(name: str) -> dict[str, Any] | None:
    """Return the `config.json` of a built-in model, with its class and the data type of its checkpoint; else None.

    A local folder of the same name counts as one.
    """
    if Path(name).exists():
        return None
    model = find_builtin(name)
    if model is None:
        return None
    return {
        **model.config,
        "architectures": [_class_name(str(model.config["model_type"]))],
        "dtype": model.checkpoint_dtype,
        "torch_dtype": model.checkpoint_dtype,
    }


def _class_name(model_type: str) -> str:
    """Return the name of transformers' class of a model that generates text, of text alone or of images too."""
    # Importing it takes seconds, and the script may need nothing of it.
    from transformers.models.auto import modeling_auto

    of_text: Mapping[str, str] = modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
    of_images: Mapping[str, str] = modeling_auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES
    return of_text[model_type] if model_type in of_text else of_images[model_type]


_SIZE = re.compile(r"(?<![a-z0-9.])(\d+(?:\.\d+)?)([mb])(?![a-z0-9])")
_UNITS = {"m": 10**6, "b": 10**9}
_TOLERANCE = 0.1
"""By how much the parameters may differ from the number in a name: ``7b`` has 6.7 to 7.7 billion."""


def assumed_config(config_class: Any, name: str) -> tuple[dict[str, Any], str] | None:
    """Return a configuration with the defaults of a class, and the name of the class; None if there is no such class.

    Args:
        config_class: The class whose configuration is asked for; that of all classes leaves it to the name.
        name: Name of the model.
    """
    from transformers import CONFIG_MAPPING

    model_type = getattr(config_class, "model_type", "") or _type_in(name, CONFIG_MAPPING.keys())
    if not model_type:
        return None
    known = dict(CONFIG_MAPPING.items()).get(model_type, config_class)
    if not _has_size(known, name):
        return None
    return {"model_type": model_type, "architectures": _architectures(model_type)}, known.__name__


def _type_in(name: str, types: Any) -> str:
    """Return the longest type of a model that the name begins with, or has between hyphens; empty if none."""
    tail = _hyphened(name.rpartition("/")[2])
    found = [each for each in types if f"-{_hyphened(each)}-" in f"-{tail}-"]
    return max(found, key=len, default="")


def _hyphened(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", text.lower())


def _has_size(config_class: Any, name: str) -> bool:
    """Return whether the defaults have the number of parameters that the name states; true if it states none."""
    stated = _SIZE.findall(name.rpartition("/")[2].lower())
    if not stated:
        return True
    number, unit = stated[0]
    parameters = _parameters(config_class)
    return parameters is not None and abs(parameters / (float(number) * _UNITS[unit]) - 1) <= _TOLERANCE


def _parameters(config_class: Any) -> int | None:
    """Return the parameters of a model with the defaults of a class; None if there is no such model."""
    import torch
    from transformers import AutoModel

    try:
        with torch.device("meta"):
            model = AutoModel.from_config(config_class())
    except (ValueError, TypeError, AttributeError):
        return None
    return sum(parameter.numel() for parameter in model.parameters())


def _architectures(model_type: str) -> list[str]:
    """Return the class of language models of this type, or else its plain class."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES, MODEL_MAPPING_NAMES

    names: list[Any] = [MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.get(model_type), MODEL_MAPPING_NAMES.get(model_type)]
    return [name for name in names if isinstance(name, str)][:1]


# ---- folders of models -----------------------------------------------------------------------------------------------

_CONFIG = "config.json"
_ALL = ["*"]


def cached_file_patches(file_download: ModuleType, parent: Path, replaced: Replaced) -> list[Patch]:
    """Return the patch of the function of the hub's client that finds one file in its cache."""
    find = file_download.try_to_load_from_cache

    def found(repo_id: str, filename: str, *args: Any, **kwargs: Any) -> Any:
        answer = find(repo_id, filename, *args, **kwargs)
        if isinstance(answer, str) or filename != _CONFIG or kwargs.get("repo_type") not in (None, "model"):
            return answer
        folder = made_folder(repo_id, parent, replaced)
        return answer if folder is None else str(folder / _CONFIG)

    return [(file_download, "try_to_load_from_cache", found)]


def snapshot_patches(snapshots: ModuleType, parent: Path, replaced: Replaced) -> list[Patch]:
    """Return the patch of the function of a hub's client, also ModelScope's, that finds the whole folder of a model."""
    find = snapshots.snapshot_download

    def found(*args: Any, **kwargs: Any) -> Any:
        try:
            return find(*args, **kwargs)
        except OSError:
            folder = None
            if kwargs.get("repo_type") in (None, "model"):
                name = str(args[0] if args else kwargs.get("repo_id") or kwargs.get("model_id"))
                folder = made_folder(name, parent, replaced)
            elif kwargs.get("ignore_patterns") == _ALL:
                # axolotl asks whether a data set exists; one that is not here is made when it is loaded.
                parent.mkdir(parents=True, exist_ok=True)
                folder = parent
            if folder is None:
                raise
            return str(folder)

    return [(snapshots, "snapshot_download", found)]


def made_folder(name: str, parent: Path, replaced: Replaced) -> Path | None:
    """Return the folder of a model that is known here, made by the first process that asks.

    Args:
        name: Of the model on the hub.
        parent: Folder of such folders.
        replaced: Gets its name.

    Returns:
        None if the model's configuration is not known, or if the hub answers, which has all of its files.
    """
    config = None if hub_problem() == "" else builtin_config(name) or known_config(name)
    if config is None:
        return None
    file = parent / name.replace("/", "--") / _CONFIG
    if not file.is_file():
        file.parent.mkdir(parents=True, exist_ok=True)
        descriptor, aside = tempfile.mkstemp(dir=parent)
        with os.fdopen(descriptor, "w") as written:
            json.dump(config, written, indent=1)
        Path(aside).replace(file)  # whole, whichever process is first
    replaced.add("files of", name, "its configuration")
    return file.parent
