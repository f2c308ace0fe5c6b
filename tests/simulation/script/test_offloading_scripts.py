"""A script that offloads its activations has the peaks of the same trial."""

from pathlib import Path
from typing import Any

import torch
from simulating import simulate, small_spec
from transformers import AutoModelForCausalLM
from trl import SFTTrainer

from profiler.allocator import parse_alloc_conf, replay_on_card
from profiler.domain.cards.gpu import KNOWN_GPUS
from profiler.domain.models.builtin_models import BUILTIN_MODELS
from profiler.domain.trials.trial import Lengths, Recipe
from profiler.scripts.hooks import watched
from profiler.scripts.phase_watch import PhaseWatch
from profiler.simulation.script.session import SimulatedScript
from profiler.training.data.source_data import build_tokenizer
from profiler.training.models.model import build_config
from profiler.training.recipes.sft import Sft
from profiler.training.run import PlainSession

KEYS: dict[str, Any] = {
    "recipe": Recipe.SFT,
    "max_length": 64,
    "gradient_checkpointing": False,
    "gradient_accumulation_steps": 2,
    "lengths": Lengths.FORCED,
    "activation_offloading": True,
}


def peaks(trace: Any) -> tuple[int, int]:
    found = replay_on_card(trace, capacity_bytes=None, config=parse_alloc_conf(""))
    return found.peak_allocated_bytes, found.peak_reserved_bytes


def of_script(folder: Path) -> tuple[int, int]:
    spec = small_spec(**KEYS)
    session = SimulatedScript(
        KNOWN_GPUS["h100-80gb"], alloc_conf="", add_model=lambda _: None, add_optimizer=lambda _: None
    )
    with session.running(), watched(PhaseWatch(session, steps=None)):
        model = AutoModelForCausalLM.from_config(
            build_config(BUILTIN_MODELS["tiny"].config, name="tiny"), dtype=torch.bfloat16
        ).to("cuda")
        card = PlainSession(device=torch.device("cuda"), observer=None)  # type: ignore[arg-type]
        tokenizer = build_tokenizer()
        trainer = SFTTrainer(
            model=model,
            args=Sft().arguments(spec, card, folder),
            train_dataset=Sft().data(spec, tokenizer),
            processing_class=tokenizer,
        )
        trainer.train()
    return peaks(session.recorder.finished())


def test_the_peaks_of_trls_offloading_are_those_of_the_trial(tmp_path: Path) -> None:
    """Without the addresses of storages, trl would offload one tensor, and keep the others as its views."""
    offloaded = of_script(tmp_path)
    assert offloaded == peaks(simulate(**KEYS).trace)
    assert offloaded < peaks(simulate(**KEYS | {"activation_offloading": False}).trace)
