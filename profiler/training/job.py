"""A trial's specification becomes a trainer that is ready to run."""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from functools import partial
from itertools import chain, repeat
from pathlib import Path
from typing import Any

from transformers import AutoTokenizer, set_seed

from profiler.domain.memory import Category, Phase
from profiler.domain.trial import Rollout, TrialSpec, Weights
from profiler.training.arguments import grpo_config, lora_config
from profiler.training.decode_loop import extrapolated_rollout
from profiler.training.model import build_config, build_model, reference_from_config
from profiler.training.phases import PhaseObserver
from profiler.training.placement import Placement
from profiler.training.prompts import build_prompts
from profiler.training.reward import count_words
from profiler.training.rollout import synthetic_rollout
from profiler.training.tokenizer import build_tokenizer
from profiler.training.trainer import ProfiledTrainer

_FILLER_TOKEN = 2
_ROLLOUTS_EXTRAPOLATED = 2
"""Rollouts of a simulated trial with the whole history of their growth: one before there are optimizer states, and one
after. Later ones grow like the second, in segments that are there already, and only fill their cache."""


def build_trainer(
    spec: TrialSpec,
    *,
    model_config: Mapping[str, Any],
    placement: Placement,
    observer: PhaseObserver,
    output_dir: Path,
    arguments_ready: Callable[[Any], None] = lambda _: None,
    shortcut_rollout: bool = False,
) -> ProfiledTrainer:
    """Model, adapters, prompts and trl's trainer, on the trial's device.

    Args:
        spec: What to run.
        model_config: The fields of the model's `config.json`.
        placement: Where it runs.
        observer: Told when each phase begins.
        output_dir: An empty folder; nothing of value is written there.
        arguments_ready: Called with trl's configuration before anything uses it; the place to move it to a device that
            is not there.
        shortcut_rollout: Run only as many decoding steps as the placement needs to tell the others over.

    Raises:
        UsageError: the data set cannot be used.
    """
    observer.enter(Phase.LOAD)
    arguments = grpo_config(spec, use_cpu=placement.use_cpu, output_dir=output_dir)
    arguments_ready(arguments)
    # trl seeds only after the model is there.
    set_seed(spec.seed)
    tokenizer = _tokenizer(spec)
    prompts = build_prompts(spec, tokenizer)
    config = build_config(model_config, name=spec.model)
    model = build_model(spec, config, placement)
    with reference_from_config(spec, config, placement):
        return ProfiledTrainer(
            spec=spec,
            observer=observer,
            rollout_context=_rollout_context(spec, placement, shortcut=shortcut_rollout),
            model=model,
            reward_funcs=count_words,
            args=arguments,
            train_dataset=prompts,
            processing_class=tokenizer,
            peft_config=lora_config(spec),
        )


def _rollout_context(
    spec: TrialSpec, placement: Placement, *, shortcut: bool
) -> Callable[[Any], AbstractContextManager[None]] | None:
    """How the trial decodes, where it is not simply token by token."""
    synthetic = partial(
        synthetic_rollout, filler_token=_FILLER_TOKEN, cache_scope=lambda: placement.attributed(Category.KV_CACHE)
    )
    if spec.rollout is Rollout.SYNTHETIC:
        return synthetic
    history = placement.decode_extrapolator() if shortcut else None
    if history is None:
        return None
    told = partial(extrapolated_rollout, history=history)
    ways = chain([told] * _ROLLOUTS_EXTRAPOLATED, repeat(synthetic))
    return lambda model: next(ways)(model)


def _tokenizer(spec: TrialSpec) -> Any:
    """The model's own for pretrained weights, else one that needs no download."""
    if spec.weights is Weights.PRETRAINED:
        return AutoTokenizer.from_pretrained(spec.model, padding_side="left", truncation_side="left")
    return build_tokenizer()
