"""Attribution of a trainer's tensors by name, and of the KV cache.

By name: weights, reference, adapters, gradients and optimizer states. Of the cache: what transformers' cache layers
allocate. Layers with attention grow in `update`; layers with linear attention make states of constant size once.
"""

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import torch
from transformers import cache_utils

from profiler.domain.memory import Category
from profiler.seams.patching import patched
from profiler.simulation.tracing.recorder import Recorder, plain_path

_COPY = ".ref"
"""The name that trl gives to a frozen copy of adapters; peft adds `.weight`, but to those of an embedding."""

_OF_CRITIC = "critic: "
"""Before the names of a critic's modules and parameters."""


class Attribution:
    """Attributes a trainer's tensors in a recorder. `device_type` is "meta" for the simulated GPU."""

    def __init__(self, recorder: Recorder, *, device_type: str) -> None:
        self._recorder = recorder
        self._device_type = device_type
        self._parameters: dict[torch.Tensor, str] = {}

    def trainer_ready(self, trainer: Any) -> None:
        """Attribute weights, reference and adapters, and set how logits and gradients are recognised."""
        recorder = self._recorder
        recorder.modules.know(trainer.model)
        recorder.attribute(named_tensors(trainer.model), Category.WEIGHTS)
        adapters = [(name, value) for name, value in named_tensors(trainer.model) if "lora_" in name]
        recorder.attribute(adapters, Category.ADAPTERS)
        copies = ((name, value) for name, value in adapters if name.removesuffix(".weight").endswith(_COPY))
        recorder.attribute(copies, Category.REFERENCE)
        if trainer.ref_model is not None:
            recorder.modules.know(trainer.ref_model, prefix="reference: ")
            recorder.attribute(named_tensors(trainer.ref_model), Category.REFERENCE)
        self._parameters = _parameters(named_tensors(trainer.model))
        if trainer.critic is not None:
            recorder.modules.know(trainer.critic.model, prefix=_OF_CRITIC)
            of_critic = [(_OF_CRITIC + name, value) for name, value in named_tensors(trainer.critic.model)]
            recorder.attribute(of_critic, Category.CRITIC)
            self._parameters |= _parameters(of_critic)
        trained = [(name, value) for value, name in self._parameters.items() if value.requires_grad]
        for _, parameter in trained:
            parameter.register_post_accumulate_grad_hook(self._gradient_made)
        recorder.know_model(
            vocab_size=trainer.model.config.get_text_config().vocab_size,
            trained=[(name, parameter.shape) for name, parameter in trained],
        )

    def trainer_done(self, trainer: Any) -> None:
        """Attribute the optimizer's state, and that of a critic's."""
        optimizers = [getattr(trainer.optimizer, "optimizer", trainer.optimizer)]
        if trainer.critic is not None:
            optimizers.append(trainer.critic.optimizer)
        states = (
            (f"{kind} of {self._parameters.get(parameter, '')}", value)
            for optimizer in optimizers
            for parameter, state in optimizer.state.items()
            for kind, value in state.items()
            if isinstance(value, torch.Tensor) and value.device.type == self._device_type
        )
        self._recorder.attribute(states, Category.OPTIMIZER_STATE)

    def _gradient_made(self, parameter: torch.Tensor) -> None:
        if parameter.grad is not None:
            name = f"gradient of {self._parameters[parameter]}"
            self._recorder.attribute([(name, parameter.grad)], Category.GRADIENTS)


def _parameters(tensors: Iterable[tuple[str, torch.Tensor]]) -> dict[torch.Tensor, str]:
    return {value: name for name, value in tensors if isinstance(value, torch.nn.Parameter)}


def named_tensors(model: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield parameters and buffers by name, and the quantisation states of 4-bit weights."""
    yield from ((plain_path(name), buffer) for name, buffer in model.named_buffers())
    for path, parameter in model.named_parameters():
        name = plain_path(path)
        yield name, parameter
        state = getattr(parameter, "quant_state", None)
        while state is not None:
            parts = (state.absmax, state.code, state.offset)
            yield from ((f"scales of {name}", part) for part in parts if isinstance(part, torch.Tensor))
            state = state.state2


CACHE_LAYERS = (cache_utils.DynamicLayer, cache_utils.DynamicSlidingWindowLayer)

_LINEAR_LAYER = "LinearAttentionLayer"
"""The cache layer of linear attention, which transformers before 5 does not have."""


def attributed_cache(recorder: Recorder) -> AbstractContextManager[None]:
    """While active, tensors that cache layers make for themselves are attributed to the KV cache."""
    makers = [(layer, "update") for layer in CACHE_LAYERS]
    if (linear := getattr(cache_utils, _LINEAR_LAYER, None)) is not None:
        makers.append((linear, "lazy_initialization"))
    return patched([(layer, name, _attributed(getattr(layer, name), recorder)) for layer, name in makers])


def _attributed(make: Any, recorder: Recorder) -> Any:
    def run(*args: Any, **kwargs: Any) -> Any:
        with recorder.attributed(Category.KV_CACHE):
            return make(*args, **kwargs)

    return run
