"""A script that runs with few layers and is continued to all of them equals one that runs all, or runs all."""

import json
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from matrix import further
from transformers.utils import import_utils

from profiler.domain.models.builtin_models import BUILTIN_MODELS
from profiler.domain.runs.other_runs import ScriptJob, ScriptSpec
from profiler.domain.runs.outcome import Outcome, Versions
from profiler.domain.trials.trial import Backend
from profiler.simulation.depth.repetitions import LAYERS_RUN, DepthDiffersError
from profiler.simulation.script.few_layers import FewLayers
from profiler.worker.scripts import simulated_script
from profiler.worker.scripts.script import ScriptRun
from profiler.worker.scripts.simulated_script import AllLayersNeededError, simulated_outcome
from profiler.worker.simulated import SimulatedRun

LAYERS = 7
TINY = dict(BUILTIN_MODELS["tiny"].config) | {"num_hidden_layers": LAYERS, "architectures": ["Qwen2ForCausalLM"]}
VERSIONS = Versions(torch=None, trl=None, transformers=None, peft=None, bitsandbytes=None, profiler="0")

LORA = 'LoraConfig(r=8, target_modules="all-linear", task_type="CAUSAL_LM")'
GRPO = """
from datasets import Dataset
from peft import LoraConfig
from trl import GRPOConfig, GRPOTrainer

def length(completions, **_):
    return [float(len(text)) for text in completions]

trainer = GRPOTrainer(
    model="MODEL",
    reward_funcs=length,
    args=GRPOConfig(output_dir="OUT", per_device_train_batch_size=2, num_generations=2, max_completion_length=4,
                    gradient_accumulation_steps=2, report_to="none", disable_tqdm=True, MORE),
    train_dataset=Dataset.from_dict({"prompt": ["one two three", "four"] * 8}),
    peft_config=ADAPTERS,
)
trainer.train()
"""
SFT = """
import torch
from datasets import Dataset
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import SFTConfig, SFTTrainer

model = AutoModelForCausalLM.from_pretrained("MODEL", dtype=torch.bfloat16)
model.config.use_cache = False
model = get_peft_model(model, LoraConfig(r=8, target_modules=["q_proj", "v_proj"], lora_dropout=0.1))
rows = [{"text": "one two three " * (1 + number % 7)} for number in range(32)]
arguments = SFTConfig(output_dir="OUT", per_device_train_batch_size=2, gradient_accumulation_steps=2, max_length=32,
                      report_to="none", disable_tqdm=True)
trainer = SFTTrainer(model=model, args=arguments, train_dataset=Dataset.from_list(rows),
                     processing_class=AutoTokenizer.from_pretrained("MODEL"))
trainer.train()
"""
LOAD = 'from transformers import AutoModelForCausalLM\nmodel = AutoModelForCausalLM.from_pretrained("MODEL").to("cuda")'


def grpo(adapters: str = LORA, more: str = "") -> str:
    return GRPO.replace("ADAPTERS", adapters).replace("MORE", more)


def job(folder: Path, text: str, **config: Any) -> ScriptJob:
    """Return the job of a script, which may run with few layers; its model is in a folder."""
    model, script = folder / "model", folder / "train.py"
    model.mkdir()
    (model / "config.json").write_text(json.dumps(TINY | config))
    script.write_text(text.replace("MODEL", str(model)).replace("OUT", str(folder / "out")))
    spec = ScriptSpec(script=str(script), backend=Backend.SIMULATED, gpu="rtx-4090-24gb", steps=2)
    return ScriptJob(
        run_id="a1",
        spec=spec,
        script_sha256="",
        versions=VERSIONS,
        folder=str(folder),
        again_file=str(folder / "again"),
    )


@pytest.fixture(autouse=True)
def _few_are_enough(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Deep models are those of the tests, and scripts find a process as new as that which is their own elsewhere."""
    monkeypatch.setattr(simulated_script, "FEWEST_LAYERS", LAYERS)
    for name in os.environ:
        if name.startswith("ACCELERATE_"):  # left there by trainers that this process had before
            monkeypatch.delenv(name)
    _forget_the_devices()
    yield
    _forget_the_devices()


def _forget_the_devices() -> None:
    """Let transformers look again for devices and what they compute: it keeps the first answer of a process."""
    for found in vars(import_utils).values():
        if hasattr(found, "cache_clear"):
            found.cache_clear()


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[SimulatedRun]:
    """Every run whose outcome is taken."""
    found: list[SimulatedRun] = []
    on_card = simulated_script.outcome_on_card

    def kept(run: SimulatedRun, spec: Any) -> Outcome:
        found.append(run)
        return on_card(run, spec)

    monkeypatch.setattr(simulated_script, "outcome_on_card", kept)
    return found


def outcome_of(one: ScriptJob) -> Outcome:
    return simulated_outcome(one, ScriptRun(one).run)


def by_value(run: SimulatedRun) -> SimulatedRun:
    """The run with its sites instead of their numbers."""
    trace = run.trace
    sites = tuple(trace.sites[number] for number in trace.site_of)
    return replace(run, layers_run=None, trace=replace(trace, sites=sites, site_of=()))


@pytest.mark.slow
@pytest.mark.parametrize(
    "text",
    [
        grpo(more="beta=0.04"),
        SFT,
        *further(
            grpo(), grpo("None"), grpo(more="gradient_checkpointing=False"), SFT.replace("model = get", "_ = get")
        ),
    ],
    ids=["GRPO with a reference", "SFT with LoRA", "GRPO with LoRA", "GRPO", "GRPO without checkpointing", "SFT"],
)
def test_few_layers_of_a_script_equal_all_layers(text: str, tmp_path: Path, runs: list[SimulatedRun]) -> None:
    one = job(tmp_path, text)
    few, whole = outcome_of(one), outcome_of(replace(one, again_file=""))
    assert (few.work.layers_run, whole.work.layers_run) == (LAYERS_RUN, None)
    assert replace(few, work=replace(few.work, layers_run=None)) == whole
    assert by_value(runs[0]) == by_value(runs[1])


def test_adapters_leave_the_random_numbers_of_all_layers(tmp_path: Path) -> None:
    """What a script draws after them, such as the order of its rows, must not depend on the layers that ran."""
    one = job(tmp_path, SFT[: SFT.index("rows =")].replace("model = Auto", "torch.manual_seed(1)\nmodel = Auto"))
    with pytest.raises(AllLayersNeededError, match="nothing was trained"):
        outcome_of(one)
    few = torch.get_rng_state()
    outcome_of(replace(one, again_file=""))
    assert torch.equal(few, torch.get_rng_state())


# ---- scripts that differ beyond the layers that would run ------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (grpo('LoraConfig(target_modules=["q_proj"], layers_to_transform=[0, 1, 2])'), "layers_to_transform"),
        (grpo(LORA.replace(")", ', rank_pattern={"layers.6.mlp.up_proj": 4})')), "rank_pattern"),
        (grpo(LORA.replace('"all-linear"', '["q_proj", "layers.6.mlp.up_proj"]')), "named by a path"),
        (grpo(LORA.replace('"all-linear"', '".*6.mlp.up_proj"')), "named by a path"),
        (grpo("None", 'beta=0.1, model_init_kwargs={"dtype": "bfloat16"}'), "loads a second model"),
        (grpo(more='optim="galore_adamw", optim_target_modules=["layers.6.mlp"]'), "trainer has optim="),
        (
            SFT.replace("rows =", 'model = AutoModelForCausalLM.from_pretrained("MODEL")\nrows ='),
            "loads a second model",
        ),
    ],
)
def test_a_script_with_unequal_layers_runs_once_more(text: str, why: str, tmp_path: Path) -> None:
    one = job(tmp_path, text)
    with pytest.raises(AllLayersNeededError, match=why):
        outcome_of(one)


@pytest.mark.parametrize(
    "config",
    [
        {"layer_types": ["full_attention"] * 6 + ["sliding_attention"], "sliding_window": 8},
        {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 6},
        {"num_hidden_layers": LAYERS - 1},
    ],
    ids=str,
)
def test_a_model_that_is_not_proven_runs_whole_at_once(config: dict[str, Any], tmp_path: Path) -> None:
    found = outcome_of(job(tmp_path, LOAD, **config))
    assert found.work.layers_run is None
    assert found.peaks.allocated_bytes


def test_a_trace_that_does_not_repeat_is_no_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def differs(*_: object) -> None:
        raise DepthDiffersError("it is another one")

    monkeypatch.setattr(FewLayers, "continued", differs)
    with pytest.raises(AllLayersNeededError, match="another one"):
        outcome_of(job(tmp_path, SFT))
