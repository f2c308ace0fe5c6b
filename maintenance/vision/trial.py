"""One trial of GRPO with images: trl's own trainer and a real model of transformers on a simulated card."""

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from PIL import Image
from transformers import AutoModelForImageTextToText, set_seed

from maintenance.vision.processor import SizedProcessor
from profiler.allocator import Trace
from profiler.config.models.architecture import read_architecture
from profiler.domain.memory import Phase
from profiler.domain.trials.trial import TrialSpec
from profiler.simulation.session import Extrapolation, Simulation
from profiler.training.arguments import lora_config
from profiler.training.data.source_data import build_tokenizer
from profiler.training.models.model import build_config
from profiler.training.recipes.grpo.recipe import Grpo, count_words
from profiler.training.recipes.grpo.trainer import Completions, ProfiledGRPOTrainer
from profiler.training.rollouts import rollout_engine
from profiler.worker.simulated import card_of

_SPECIAL = {"image_token_id": 100, "video_token_id": 101, "vision_start_token_id": 102, "vision_end_token_id": 103}


def simulate_with_images(spec: TrialSpec, config: Mapping[str, Any]) -> Trace:
    """Return what the real trainer allocates for `spec`, with random weights. Without a separate reference model.

    Args:
        spec: The trial, of GRPO.
        config: The fields of the model's `config.json`.
    """
    simulation = Simulation(card_of(spec), extrapolation=Extrapolation(steps=False))
    recipe = Grpo()
    with tempfile.TemporaryDirectory() as folder, simulation.running():
        simulation.enter(Phase.LOAD)
        arguments = recipe.arguments(spec, simulation, Path(folder))
        simulation.adopt(arguments)
        set_seed(spec.seed)
        with simulation.device:
            model = AutoModelForImageTextToText.from_config(
                build_config(_complete(config), name=spec.model),
                dtype=getattr(torch, spec.dtype.value),
                attn_implementation=spec.attn_implementation.value,
            )
        trainer = ProfiledGRPOTrainer(
            spec=spec,
            completions=Completions(spec),
            observer=simulation,
            rollout=rollout_engine(spec, simulation),
            model=model,
            reward_funcs=count_words,
            args=arguments,
            train_dataset=_rows(spec),
            processing_class=_processor(spec, config),
            peft_config=lora_config(spec),
        )
        simulation.trainer_ready(trainer)
        trainer.train()
        simulation.trainer_done(trainer)
        return simulation.recorder.finished()


def _complete(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return `config` with what the formulas do not need: tokens of images, and the parts of rotary positions."""
    made = {key: _plain(value) for key, value in config.items()} | _SPECIAL
    text = made.get("text_config", made)
    half = (text.get("head_dim") or text["hidden_size"] // text["num_attention_heads"]) // 2
    third = 3 * half // 8
    parts = [half - 2 * third, third, third]
    text["rope_parameters"] = {"rope_type": "default", "rope_theta": 1e6, "mrope_section": parts}
    text["use_sliding_window"] = False
    return made


def _plain(value: object) -> Any:
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    return list(value) if isinstance(value, Sequence) and not isinstance(value, str) else value


def _processor(spec: TrialSpec, config: Mapping[str, Any]) -> SizedProcessor:
    tower = read_architecture(config, model=spec.model).vision
    assert tower is not None and spec.images_per_prompt is not None and spec.max_pixels is not None
    tokens = spec.max_pixels // tower.pixels_per_token
    return SizedProcessor(
        build_tokenizer(),
        text_tokens=spec.max_prompt_length - spec.images_per_prompt * tokens,
        images=spec.images_per_prompt,
        tokens=tokens,
        merge=tower.spatial_merge_size,
        patch_values=tower.patch_values,
        image_token=_SPECIAL["image_token_id"],
    )


def _rows(spec: TrialSpec) -> Dataset:
    """Return more rows than the steps need; the processor decides what a row has."""
    rows = spec.generation_batch_size * (spec.steps + 1) * spec.gradient_accumulation_steps
    message = [{"role": "user", "content": "prompt"}]
    pixel = Image.new("RGB", (1, 1))
    images = [pixel] * (spec.images_per_prompt or 0)
    return Dataset.from_dict({"prompt": [message] * rows, "images": [images] * rows})
