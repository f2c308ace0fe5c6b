"""A session in which a user's script runs on the simulated GPU, and how its models are loaded."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from weakref import ref

import torch
from bitsandbytes.nn import Linear4bit, Params4bit
from transformers import PreTrainedModel
from transformers.core_model_loading import dot_natural_key
from transformers.modeling_utils import caching_allocator_warmup

from profiler.domain.cards.gpu import Gpu
from profiler.domain.errors import UnsupportedTrialError
from profiler.domain.memory import Category, Phase
from profiler.seams.patching import Patch, patched
from profiler.seams.special_tokens import SpecialTokens
from profiler.simulation.cuda.offloading import offloaded_activations
from profiler.simulation.cuda.trl_kernels import trl_functions
from profiler.simulation.script.few_layers import FewLayers
from profiler.simulation.script.torch_cuda.card_names import META, CardNames, UnknownReads
from profiler.simulation.script.torch_cuda.cuda_calls import cuda_calls
from profiler.simulation.script.torch_cuda.cuda_memory import Counters
from profiler.simulation.session import Extrapolation, Simulation
from profiler.simulation.tracing.attribution import named_tensors
from profiler.simulation.tracing.recorder import plain_path


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


Count = Callable[[Any], None]
"""Takes note of the parameters of a model or of an optimizer."""


class SimulatedScript:
    """The simulated GPU for one script. One per process.

    Args:
        gpu: The card.
        alloc_conf: Settings of torch's allocator (PYTORCH_ALLOC_CONF), for the counters that the script reads.
        add_model: Counts the parameters of a model.
        add_optimizer: Counts what an optimizer trains.
        fewest_layers: A model with so many equal layers runs with few of them; None: all layers run.
    """

    def __init__(
        self, gpu: Gpu, *, alloc_conf: str, add_model: Count, add_optimizer: Count, fewest_layers: int | None = None
    ) -> None:
        self._gpu = gpu
        self._special_tokens = SpecialTokens()
        self._simulation = Simulation(
            gpu, extrapolation=Extrapolation(decoding=False, steps=False), sampled_token=self._sampled_token
        )
        self.recorder = self._simulation.recorder
        self._counters = Counters(self.recorder.trace, gpu, alloc_conf=alloc_conf)
        self._add_model, self._add_optimizer = add_model, add_optimizer
        self._models: list[ref[Any]] = []
        self._optimizers: list[ref[Any]] = []
        self._names: dict[int, str] = {}
        self._watched: set[int] = set()
        self._trained: dict[str, torch.Size] = {}
        self._vocabulary = 0
        self.reads = UnknownReads()
        self.few: FewLayers | None = None
        """What shortens the model; None if all layers run."""
        if fewest_layers is not None:
            self.few = FewLayers(self.recorder, self._simulation.host_side, fewest=fewest_layers)

    @contextmanager
    def running(self) -> Iterator[None]:
        """The context of the whole script."""
        with ExitStack() as stack:
            functions_of_trl = trl_functions(self.recorder, self._simulation.products)
            stack.enter_context(self._simulation.running())
            stack.enter_context(patched(functions_of_trl))
            stack.enter_context(cuda_calls(self._gpu, self._counters, self.recorder, self.reads))
            # After the names of the card: trl's offloading compares the accelerator with the device of a tensor.
            stack.enter_context(offloaded_activations(self.recorder))
            stack.enter_context(_parameters_keep_their_identity())
            stack.enter_context(patched(loading_patches(self._simulation)))
            if self.few is not None:
                stack.enter_context(patched(self.few.patches()))
            stack.enter_context(self.reads.noticing())
            stack.enter_context(CardNames())
            yield

    def enter(self, phase: Phase) -> None:
        """Begin `phase`."""
        if self.few is not None:
            self.few.enter(phase)
        if phase is Phase.ROLLOUT:
            self.reads.note("where completions end: every one has its maximum of tokens")
            self._special_tokens.forget()
        self._simulation.enter(phase)

    def _sampled_token(self, vocabulary: int) -> int:
        """Return a token that ends no completion."""
        self._special_tokens.look()
        return self._special_tokens.ordinary(vocabulary)

    def model_found(self, model: Any) -> None:
        """Attribute the tensors of a model; one that requires no gradient is a reference."""
        self._models.append(ref(model))
        self._attribute(model)

    def _attribute(self, model: Any) -> None:
        trained = [(name, value) for name, value in model.named_parameters() if value.requires_grad]
        self.recorder.modules.know(model, prefix="" if trained else "reference: ")
        self.recorder.attribute(named_tensors(model), Category.WEIGHTS if trained else Category.REFERENCE)
        adapters = ((name, value) for name, value in named_tensors(model) if "lora_" in name)
        self.recorder.attribute(adapters, Category.ADAPTERS)
        config: Any = getattr(model, "config", None)
        if hasattr(config, "get_text_config"):
            self._vocabulary = getattr(config.get_text_config(), "vocab_size", 0) or self._vocabulary
        for name, parameter in trained:
            self._watch(plain_path(name), parameter)
        self.recorder.know_model(vocab_size=self._vocabulary, trained=self._trained.items())

    def model_trained(self, model: Any) -> None:
        """Count the parameters of a model that is trained; adapters may have been off when it was found."""
        self._add_model(model)
        if any(value.requires_grad and id(value) not in self._names for value in model.parameters()):
            self._attribute(model)

    def _watch(self, name: str, parameter: Any) -> None:
        """Let gradients of a parameter have its name."""
        self._names[id(parameter)] = name
        self._trained[name] = parameter.shape
        if id(parameter) not in self._watched:
            self._watched.add(id(parameter))
            parameter.register_post_accumulate_grad_hook(self._gradient_made)

    def _gradient_made(self, parameter: Any) -> None:
        if parameter.grad is not None:
            name = f"gradient of {self._names.get(id(parameter), 'a parameter')}"
            self.recorder.attribute([(name, parameter.grad)], Category.GRADIENTS)

    def optimizer_found(self, optimizer: Any) -> None:
        """Count what it trains; a model of which no optimizer trains anything is a reference."""
        self._optimizers.append(ref(optimizer))
        self._add_optimizer(optimizer)
        optimizers = (found for each in self._optimizers if (found := each()) is not None)
        trained = {id(tensor) for found in optimizers for group in found.param_groups for tensor in group["params"]}
        for model in (found for each in self._models if (found := each()) is not None):
            if not any(id(parameter) in trained for parameter in model.parameters()):
                self.recorder.modules.know(model, prefix="reference: ")
                self.recorder.attribute(named_tensors(model), Category.REFERENCE)

    def step_done(self, step: int) -> None:
        """Attribute the states of the optimizers."""
        for reference in self._optimizers:
            optimizer = reference()
            if optimizer is not None:
                self.recorder.attribute(self._states(optimizer), Category.OPTIMIZER_STATE)

    def _states(self, optimizer: Any) -> Iterator[tuple[str, torch.Tensor]]:
        for parameter, state in optimizer.state.items():
            for kind, value in state.items():
                if isinstance(value, torch.Tensor) and value.is_meta:
                    yield f"{kind} of {self._names.get(id(parameter), 'a parameter')}", value


@contextmanager
def _parameters_keep_their_identity() -> Iterator[None]:
    """While active, a module that moves to the card keeps its parameters, as it does between the CPU and CUDA.

    torch makes new ones where a tensor changes its type, and `meta` tensors have one of their own.
    """
    before = torch.__future__.get_swap_module_params_on_conversion()
    torch.__future__.set_swap_module_params_on_conversion(True)
    try:
        yield
    finally:
        torch.__future__.set_swap_module_params_on_conversion(before)
