"""trl's own trainer with a small vision-language model on a simulated card, compared with the closed form."""

from dataclasses import replace

import pytest

from maintenance.vision.trial import simulate_with_images
from profiler.allocator import AllocatorConfig, replay_on_card
from profiler.analytical.estimate import phase_instants
from profiler.config.models.architecture import read_architecture
from profiler.config.trials.specification import parse_point
from profiler.domain.memory import Phase

CONFIG = {
    "model_type": "qwen2_5_vl",
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 1024,
    "max_position_embeddings": 32768,
    "tie_word_embeddings": True,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e6, "mrope_section": [8, 12, 12]},
    "vision_config": {
        "depth": 2,
        "hidden_size": 640,
        "intermediate_size": 1664,
        "num_heads": 8,
        "out_hidden_size": 256,
        "window_size": 448,
        "fullatt_block_indexes": (1,),
    },
}
POINT = {
    "backend": "simulated",
    "model": "m",
    "max_pixels": 1024 * 784,
    "max_prompt_length": 1056,
    "max_completion_length": 16,
    "lengths": "forced",
    "num_generations": 2,
    "per_device_train_batch_size": 2,
    "gradient_accumulation_steps": 1,
    "steps": 2,
}
TOLERANCE = 0.02
"""Blocks are rounded up, and small tensors are left out."""


def _without_scratch(trace):
    """The trace without scratch of kernels, which the closed form leaves out."""
    kernels = {number for number, site in enumerate(trace.sites) if site.operation.endswith("kernel")}
    sizes = [0 if site in kernels else size for site, size in zip(trace.site_of, trace.sizes_bytes, strict=True)]
    return replace(trace, sizes_bytes=tuple(sizes), sizes_by_capability={})


@pytest.mark.slow
@pytest.mark.parametrize(("tuning", "checkpointing"), [("full", True), ("lora", False)])
def test_a_trial_with_images_needs_what_the_closed_form_says(tuning, checkpointing):
    architecture = read_architecture(CONFIG, model="m")
    point = {**POINT, "tuning": tuning, "gradient_checkpointing": checkpointing}
    spec = parse_point(point, architecture_of=lambda _: architecture)
    trace = _without_scratch(simulate_with_images(spec, CONFIG))
    replayed = replay_on_card(trace, capacity_bytes=None, config=AllocatorConfig())
    found = phase_instants(spec, architecture)
    text = phase_instants(spec, replace(architecture, vision=None))
    for phase in (Phase.ROLLOUT, Phase.REWARD, Phase.FORWARD, Phase.BACKWARD):
        simulated, estimated = replayed.phases[phase].peak_allocated_bytes, int(found[phase].total_bytes)
        assert estimated == pytest.approx(simulated, rel=TOLERANCE), phase
        # Without the tower's formulas it would be far off.
        assert int(text[phase].total_bytes) < 0.8 * simulated, phase
