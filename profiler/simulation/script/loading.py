"""`from_pretrained` of a script on the simulated GPU: weights are loaded on the host, then placed on the card."""

from collections.abc import Iterator
from typing import Any

import torch
from bitsandbytes.nn import Linear4bit, Params4bit
from transformers import PreTrainedModel
from transformers.core_model_loading import dot_natural_key
from transformers.modeling_utils import caching_allocator_warmup

from profiler.domain.errors import UnsupportedTrialError
from profiler.seams.patching import Patch
from profiler.simulation.script.torch_cuda.card_names import META
from profiler.simulation.session import Simulation


def loading_patches(simulation: Simulation) -> list[Patch]:
    """Return the patches of loading, and of moving what was loaded in 4 bits."""
    load = PreTrainedModel.from_pretrained.__func__
    return [
        (PreTrainedModel, "from_pretrained", classmethod(_placed(load, simulation))),
        (Linear4bit, "_apply", _without_swapping(Linear4bit._apply)),
    ]


def _placed(load: Any, simulation: Simulation) -> Any:
    """Let `from_pretrained` load on the host, and move the model to the card afterwards.

    transformers itself uses `meta` for weights that are loaded later; those are not memory of the card.
    """

    def from_pretrained(cls: Any, *args: Any, **kwargs: Any) -> Any:
        _refuse_eight_bits(kwargs.get("quantization_config"))
        target = kwargs.pop("device_map", None)
        with simulation.host_side():
            found = load(cls, *args, **kwargs)
        model = found[0] if isinstance(found, tuple) else found
        four_bit = any(isinstance(parameter, Params4bit) for parameter in model.parameters())
        # Without a device map transformers puts a quantised model on the card, and any other one on the host.
        if four_bit if target is None else _on_the_card(target):
            _place(model, four_bit=four_bit)
        return found

    return from_pretrained


def _refuse_eight_bits(quantization: Any) -> None:
    if getattr(quantization, "load_in_8bit", False):
        raise UnsupportedTrialError("weights in 8 bits of the script cannot be simulated; backend=emulated runs it")


def _place(model: Any, *, four_bit: bool) -> None:
    """Move a model to the card. transformers first takes its memory at once, and leaves it in torch's cache."""
    names = dict.fromkeys((name for name, _ in _tensors(model)), "cuda:0")
    caching_allocator_warmup(model, names, model.hf_quantizer if four_bit else None)
    if not four_bit:
        model.to(META)
        return
    # One by one in the order of a checkpoint: only one weight exists unquantised at any time.
    for name, value in sorted(_tensors(model), key=lambda named: dot_natural_key(named[0])):
        owner, _, own_name = name.rpartition(".")
        _place_one(model.get_submodule(owner), own_name, value)
    model.tie_weights()


def _place_one(module: Any, name: str, value: torch.Tensor) -> None:
    made = torch.empty_like(value.data, device=META)
    if isinstance(value, Params4bit):
        made = Params4bit(made, **(vars(value) | {"module": module}))._quantize(META)
    elif isinstance(value, torch.nn.Parameter):
        made = torch.nn.Parameter(made, requires_grad=value.requires_grad)
    setattr(module, name, made)


def _without_swapping(apply: Any) -> Any:
    """Let a layer keep its 4-bit weight when it is moved: torch cannot swap tensors of that class.

    The weight is on the card already, so torch changes what it refers to, as on CUDA.
    """

    def _apply(module: Any, *args: Any, **kwargs: Any) -> Any:
        before = torch.__future__.get_swap_module_params_on_conversion()
        torch.__future__.set_swap_module_params_on_conversion(False)
        try:
            return apply(module, *args, **kwargs)
        finally:
            torch.__future__.set_swap_module_params_on_conversion(before)

    return _apply


def _tensors(model: Any) -> Iterator[tuple[str, torch.Tensor]]:
    yield from model.named_parameters()
    yield from model.named_buffers()


def _on_the_card(device_map: Any) -> bool:
    devices = device_map.values() if isinstance(device_map, dict) else (device_map,)
    return not all(str(device) in ("cpu", "disk") for device in devices)
