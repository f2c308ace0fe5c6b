"""A script whose model has few of its equal layers, and the proof that its trace may be continued to all of them."""

from collections.abc import Callable, Collection, Mapping
from contextlib import AbstractContextManager
from copy import deepcopy
from dataclasses import MISSING, fields, replace
from functools import wraps
from typing import Any, NoReturn

import torch
from peft import LoraConfig, PeftModel
from transformers import PreTrainedModel, Trainer

from profiler.allocator.traces.trace import LAYER, Trace, layer_in
from profiler.domain.errors import UnsupportedTrialError
from profiler.domain.memory import Phase
from profiler.domain.trials.optimizers import Optimizer
from profiler.domain.trials.trial import ALL_LINEAR
from profiler.seams.patching import Patch
from profiler.simulation.depth.continuation import TrainedTensors, continued
from profiler.simulation.depth.repetitions import LAYERS_RUN, DepthDiffersError
from profiler.simulation.depth.uniformity import (
    DEPTH,
    config_difference,
    layer_difference,
    random_states,
    with_layers,
)
from profiler.simulation.tracing.recorder import Recorder, plain_path

_PROVEN = frozenset({"GRPOTrainer", "SFTTrainer"})
"""Trainers of trl for which tests compare scripts with few layers with all of them."""

_PHASES = frozenset(
    {Phase.LOAD, Phase.ROLLOUT, Phase.SCORE, Phase.REWARD, Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER}
)
"""Others write the model, or evaluate it."""

_ARGUMENTS = frozenset(
    {
        "output_dir", "per_device_train_batch_size", "per_device_eval_batch_size", "num_train_epochs", "max_steps",
        "learning_rate", "lr_scheduler_type", "warmup_steps", "warmup_ratio", "weight_decay", "adam_beta1",
        "adam_beta2", "adam_epsilon", "gradient_accumulation_steps", "max_grad_norm", "bf16", "fp16", "tf32",
        "gradient_checkpointing", "activation_checkpointing", "logging_strategy", "logging_steps", "logging_first_step",
        "disable_tqdm", "run_name", "save_strategy", "save_steps", "save_total_limit", "save_only_model", "seed",
        "data_seed", "dataloader_drop_last", "dataloader_num_workers", "dataloader_pin_memory",
        "remove_unused_columns", "accelerator_config", "model_init_kwargs", "shuffle_dataset", "pad_to_multiple_of",
        "debug", "num_generations", "max_completion_length", "max_prompt_length", "generation_batch_size",
        "steps_per_generation", "temperature", "top_p", "top_k", "min_p", "repetition_penalty", "beta",
        "num_iterations", "epsilon", "epsilon_high", "scale_rewards", "loss_type", "mask_truncated_completions",
        "max_length", "packing", "completion_only_loss", "assistant_only_loss", "dataset_text_field", "eos_token",
        "pad_token",
    }
)  # fmt: skip
"""Arguments of trainers that act on all layers alike, whatever their value."""

_VALUES: Mapping[str, Collection[object]] = {
    "optim": frozenset(str(optimizer) for optimizer in Optimizer),
    "report_to": ((), "none"),
}
"""Arguments that do so with these values."""

_ADAPTERS = frozenset(
    {"task_type", "peft_type", "peft_version", "base_model_name_or_path", "inference_mode", "r", "target_modules",
     "lora_alpha", "lora_dropout", "bias", "use_rslora"}
)  # fmt: skip
"""Fields of peft's configuration that name no layer; `target_modules` are looked at."""

_KEPT_BY_TRANSFORMERS = 1.2 * 1024**3
"""Bytes of the card that `caching_allocator_warmup` of transformers leaves free."""

_ELEMENT = 2
"""Bytes of an element of that block."""


class FewLayers:
    """Shortens the model that a script loads, and proves that all of its layers would have done the same.

    The text of the script has shown that only transformers, peft and trl get hold of the model. The model is the only
    one, and the first on the card. Their arguments are compared with lists, and what they make of it with a
    model of all layers on torch's `meta` device.

    A model that is not deep, or not proven by its configuration, is not shortened, and the script runs whole at once.
    Once the model is shortened, whatever is not proven ends the run.

    Args:
        recorder: Of the run.
        host_side: A context in which `meta` tensors do not count as memory.
        fewest: Models with fewer layers are not shortened.
    """

    def __init__(
        self, recorder: Recorder, host_side: Callable[[], AbstractContextManager[None]], *, fewest: int
    ) -> None:
        self._recorder, self._host_side, self._fewest = recorder, host_side, fewest
        self.refusal = ""
        """Why the run is no answer; empty if it may be one."""
        self._is_over = False
        """Whether no model is shortened any more."""
        self._loads_first = False
        self._kind: Any = None
        self._config: Any = None
        """With all layers; None if no model is shortened."""
        self._whole: Any = None
        self._trained: TrainedTensors | None = None
        self._warmed_bytes: int | None = None
        self._card_bytes = 0

    @property
    def is_shortened(self) -> bool:
        """Whether a model ran with few layers."""
        return self._config is not None

    def patches(self) -> list[Patch]:
        """Return the patches by which a model is shortened, and followed to its trainer."""
        load = PreTrainedModel.from_pretrained.__func__
        return [
            (PreTrainedModel, "from_pretrained", classmethod(self._loaded(load))),
            (PreTrainedModel, "__init__", self._made(PreTrainedModel.__init__)),
            (PeftModel, "__init__", self._adapted(PeftModel.__init__)),
            (Trainer, "train", self._proven(Trainer.train)),
        ]

    def enter(self, phase: Phase) -> None:
        """Take note that `phase` begins."""
        if self.is_shortened and phase not in _PHASES:
            self._refuse(f"it has a phase {phase}")

    def _refuse(self, why: str) -> NoReturn:
        """End the run. A script may go on, so the reason is kept."""
        self.refusal = self.refusal or why
        raise UnsupportedTrialError(f"the script runs with all layers, because {why}")

    # ---- the model ---------------------------------------------------------------------------------------------------

    def _loaded(self, load: Any) -> Any:
        @wraps(load)
        def from_pretrained(cls: Any, *args: Any, **kwargs: Any) -> Any:
            if self._is_over:
                if self.is_shortened:
                    self._refuse("it loads a second model")
                return load(cls, *args, **kwargs)
            self._is_over = True
            if kwargs.get("quantization_config") is not None or self._recorder.trace.events:
                return load(cls, *args, **kwargs)
            states, self._loads_first = random_states(), True
            try:
                found = load(cls, *args, **kwargs)
            finally:
                self._loads_first = False
            if self.is_shortened:
                if random_states() != states:
                    self._refuse("loading the model draws numbers")
                self._note_warmup(found)
            return found

        return from_pretrained

    def _made(self, make: Any) -> Any:
        @wraps(make)
        def __init__(model: Any, config: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807  # its name in torch
            if self._loads_first:
                self._shorten(type(model), config)
            make(model, config, *args, **kwargs)

        return __init__

    def _shorten(self, kind: Any, config: Any) -> None:
        """Give a configuration few layers; the model that is made by it is the caller's own."""
        depth = getattr(config, DEPTH, 0)
        if self._config is None:
            if depth < self._fewest or getattr(config, "quantization_config", None) is not None:
                return
            few = type(config).from_dict(dict(with_layers(config.to_dict(), LAYERS_RUN)))
            if config_difference(config, few) or not kind.__module__.startswith("transformers.models."):
                return
            self._kind, self._config = kind, deepcopy(config)
        if depth == LAYERS_RUN:
            return
        if depth != getattr(self._config, DEPTH) or config.model_type != self._config.model_type:
            self._refuse("its model has another part with layers")
        shortened = with_layers(config.to_dict(), LAYERS_RUN)
        for key, value in config.to_dict().items():
            if shortened[key] != value:
                setattr(config, key, shortened[key])

    def _note_warmup(self, model: Any) -> None:
        """Take note of the block by which transformers takes the memory of the weights at once.

        Source: `caching_allocator_warmup` in transformers/modeling_utils.py, with an empty card.
        """
        self._card_bytes = torch.cuda.mem_get_info()[1]
        if not self._recorder.trace.events:
            return
        of_layer, others = self._weight_bytes(model)
        if self._recorder.trace.sizes_bytes[0] != self._warmup_bytes(others + LAYERS_RUN * of_layer):
            self._refuse("the first memory of its model is not that of all weights")
        self._warmed_bytes = self._warmup_bytes(others + getattr(self._config, DEPTH) * of_layer)

    def _warmup_bytes(self, weights: int) -> int:
        return int(min(weights, self._card_bytes - _KEPT_BY_TRANSFORMERS) // _ELEMENT) * _ELEMENT

    def _weight_bytes(self, model: Any) -> tuple[int, int]:
        """Return the bytes of one layer, and of what is in none."""
        of_layer = others = 0
        for name, value in (*model.named_parameters(), *model.named_buffers()):
            layer = layer_in(name)
            of_layer += value.nbytes if layer == 0 else 0
            others += value.nbytes if layer < 0 else 0
        return of_layer, others

    # ---- its adapters ------------------------------------------------------------------------------------------------

    def _adapted(self, make: Any) -> Any:
        @wraps(make)
        def __init__(model: Any, base: Any, adapters: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807  # as above
            if not self.is_shortened or self._whole is not None:
                make(model, base, adapters, *args, **kwargs)
                return
            self._check_adapters(adapters)
            before, asked = torch.get_rng_state(), deepcopy(adapters)
            make(model, base, adapters, *args, **kwargs)
            after = torch.get_rng_state()
            self._whole = True  # the models below are not followed

            def sampled(layers: int) -> tuple[Any, torch.Tensor]:
                torch.set_rng_state(before)
                bare = self._bare(layers)
                torch.set_rng_state(before)
                with self._host_side():
                    made = type(model)(bare, deepcopy(asked), *args, **kwargs)
                return made, torch.get_rng_state()

            if not torch.equal(sampled(LAYERS_RUN)[1], after):
                self._refuse("its adapters draw other numbers than those of the same model on meta")
            # The rows are shuffled afterwards: they see the numbers that all layers have left.
            self._whole, _ = sampled(getattr(self._config, DEPTH))

        return __init__

    def _check_adapters(self, adapters: Any) -> None:
        if type(adapters) is not LoraConfig:
            self._refuse("its adapters are not LoRA's")
        if other := _other_fields(adapters, _ADAPTERS, {}):
            self._refuse(f"its adapters have {other}")
        targets = adapters.target_modules or ()
        if not (targets == ALL_LINEAR if isinstance(targets, str) else all(each.isidentifier() for each in targets)):
            self._refuse("its adapters are of modules that are named by a path")

    def _bare(self, layers: int) -> Any:
        """Return the model without adapters on torch's meta device."""
        config = deepcopy(self._config)
        for key, value in with_layers(config.to_dict(), layers).items():
            if getattr(config, key, value) != value:
                setattr(config, key, value)
        with self._host_side(), torch.device("meta"):
            return self._kind(config)

    # ---- its trainer -------------------------------------------------------------------------------------------------

    def _proven(self, train: Any) -> Any:
        @wraps(train)
        def run(trainer: Any, *args: Any, **kwargs: Any) -> Any:
            if self.is_shortened:
                self._prove(trainer)
            return train(trainer, *args, **kwargs)

        return run

    def _prove(self, trainer: Any) -> None:
        kind = type(trainer)
        if kind.__name__ not in _PROVEN or not kind.__module__.startswith("trl.trainer."):
            self._refuse(f"its trainer is a {kind.__name__}")
        if other := _other_fields(trainer.args, _ARGUMENTS, _VALUES):
            self._refuse(f"its trainer has {other}")
        model = trainer.model
        whole = self._bare(getattr(self._config, DEPTH)) if self._whole is None else self._whole
        self._whole = whole
        if difference := layer_difference(model) or layer_difference(whole):
            self._refuse(difference)
        if _parameters(model) != _parameters(whole):
            self._refuse("the model of its trainer is not the one that was loaded")
        # The first call of its wrapper is seen before the hooks of a script know it.
        self._recorder.modules.know(model)
        self._trained = TrainedTensors(
            few=sum(parameter.requires_grad for parameter in model.parameters()),
            all=sum(parameter.requires_grad for parameter in whole.parameters()),
        )

    # ---- all layers --------------------------------------------------------------------------------------------------

    def counted(self, count: Callable[[Any], tuple[int, int]]) -> tuple[int, int]:
        """Return the numbers of parameters with all layers, and of trainable ones."""
        return count(self._whole)

    def continued(self, trace: Trace) -> Trace:
        """Return the trace with all layers.

        Raises:
            DepthDiffersError: It is another one.
        """
        if self._trained is None:
            raise DepthDiffersError("nothing was trained")
        if not self._recorder.modules.all_known:
            raise DepthDiffersError("a model ran whose modules have no names")
        found = continued(trace, layers=getattr(self._config, DEPTH), trained=self._trained)
        if self._warmed_bytes is None:
            return found
        warmed = replace(found.sites[found.site_of[0]], shape=(self._warmed_bytes // _ELEMENT,))
        return replace(
            found,
            sizes_bytes=(self._warmed_bytes, *found.sizes_bytes[1:]),
            sites=(*found.sites, warmed),
            site_of=(len(found.sites), *found.site_of[1:]),
        )


def _parameters(model: Any) -> Mapping[str, tuple[tuple[int, ...], bool]]:
    """Return shape and use of each parameter of the first layer, and of those in no layer."""
    return {
        LAYER.sub("*", plain_path(name)): (tuple(value.shape), value.requires_grad)
        for name, value in model.named_parameters()
        if layer_in(name) <= 0
    }


def _other_fields(values: Any, known: Collection[str], allowed: Mapping[str, Collection[object]]) -> str:
    """Return the first field that is not known and has another value than its default; empty if there is none."""
    for each in fields(values):
        value = getattr(values, each.name)
        default = each.default if each.default_factory is MISSING else each.default_factory()
        if each.name in known or value == default:
            continue
        plain = tuple(value) if isinstance(value, list) else value
        if each.name not in allowed or str(plain) not in {str(one) for one in allowed[each.name]}:
            return f"{each.name}={value!r}"
    return ""
