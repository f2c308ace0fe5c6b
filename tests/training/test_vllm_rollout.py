"""trl's colocate mode around an engine that records what it is asked, on the CPU."""

import json
import os
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from simulating import small_spec
from transformers import AutoConfig
from trl.generation import vllm_generation

from profiler.domain.errors import UnsupportedTrialError
from profiler.domain.memory import Phase
from profiler.domain.models.builtin_models import BUILTIN_MODELS, find_builtin
from profiler.domain.trials.trial import Backend, VllmMode, VllmModelImpl, Weights
from profiler.training.placement import RealDevice
from profiler.training.rollouts import rollout_engine
from profiler.training.rollouts.vllm import BlockRollout, VllmRollout
from profiler.training.run import PlainSession, run_training

CPU = RealDevice(device=torch.device("cpu"))


def spec(**keys):
    vllm = {"use_vllm": True, "vllm_mode": VllmMode.COLOCATE, "vllm_gpu_memory_utilization": 0.4}
    return small_spec(**{**vllm, "vllm_enable_sleep_mode": True, "steps": 1, **keys})


class RecordingEngine:
    """What trl calls of vLLM's `LLM`."""

    calls: list[object]

    def __init__(self, *, model, load_format=None, **keys):
        folder = Path(model)
        config = json.loads((folder / "config.json").read_text())
        assert (folder / "tokenizer.json").is_file()
        asked = (config["architectures"], load_format, keys["gpu_memory_utilization"], keys["max_num_seqs"])
        type(self).calls = [asked]
        runner = SimpleNamespace(model=self)
        executor = SimpleNamespace(driver_worker=SimpleNamespace(model_runner=runner))
        self.llm_engine = SimpleNamespace(model_executor=executor)

    def sleep(self, level):
        self.calls.append(f"sleep {level}")

    def wake_up(self, tags):
        self.calls.append(f"wake {','.join(tags)}")

    def load_weights(self, weights):
        if self.calls[-1] != "load":
            self.calls.append("load")

    def reset_prefix_cache(self):
        self.calls.append("reset")

    def generate(self, prompts, *, sampling_params, use_tqdm):
        self.calls.append("generate")
        assert sampling_params.ignore_eos
        ids = [5] * sampling_params.max_tokens
        logprobs = [{5: SimpleNamespace(logprob=-1.0, rank=1)}] * len(ids)
        output = SimpleNamespace(token_ids=ids, logprobs=logprobs)
        return [SimpleNamespace(prompt_token_ids=each["prompt_token_ids"], outputs=[output]) for each in prompts]


class Silent:
    def __init__(self):
        self.phases = []

    def enter(self, phase):
        self.phases.append(phase)

    def model_built(self, *, parameters, trainable):
        """Do nothing."""


def test_a_trial_runs_trls_colocate_mode_with_random_weights(monkeypatch):
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.setenv(name, "")  # trl sets them for vLLM; they go when the test ends
        monkeypatch.delenv(name)
    monkeypatch.setattr(vllm_generation, "is_vllm_available", lambda: True)
    monkeypatch.setattr(vllm_generation, "LLM", RecordingEngine, raising=False)
    monkeypatch.setattr(vllm_generation, "SamplingParams", lambda **keys: SimpleNamespace(**keys), raising=False)
    observer = Silent()
    trained = run_training(
        spec(backend=Backend.CPU, gpu=None),
        BUILTIN_MODELS["tiny"].config,
        PlainSession(device=CPU.device, observer=observer),
    )
    assert trained.steps_run == 1
    asked, *calls = RecordingEngine.calls
    assert asked == (["Qwen2ForCausalLM"], "dummy", 0.4, 8)
    assert calls == [
        *("sleep 2", "wake weights", "load", "reset"),
        *("wake kv_cache", "generate", "sleep 2"),
    ]
    assert {Phase.ROLLOUT, Phase.SCORE, Phase.FORWARD} <= set(observer.phases)
    assert vllm_generation.LLM is RecordingEngine


def test_the_backend_decides_whether_the_engine_is_vllm_or_blocks():
    assert isinstance(rollout_engine(spec(backend=Backend.CUDA), CPU), VllmRollout)
    assert isinstance(rollout_engine(spec(backend=Backend.EMULATED), CPU), VllmRollout)
    assert isinstance(rollout_engine(spec(), CPU), BlockRollout)


def test_trl_is_given_the_keys_of_the_trial():
    keys = {"vllm_max_model_length": 512, "vllm_tensor_parallel_size": 2, "vllm_model_impl": VllmModelImpl.TRANSFORMERS}
    assert rollout_engine(spec(**keys), CPU).arguments() == {
        **keys,
        "vllm_model_impl": "transformers",
        "use_vllm": True,
        "vllm_mode": "colocate",
        "vllm_gpu_memory_utilization": 0.4,
        "vllm_enable_sleep_mode": True,
        "generation_kwargs": {"ignore_eos": True},
    }


def test_two_trials_that_start_together_have_a_port_each(monkeypatch, tmp_path):
    ports = set()
    for _ in range(2):
        monkeypatch.delenv("MASTER_PORT", raising=False)
        engine = VllmRollout(spec(backend=Backend.CUDA, weights=Weights.PRETRAINED))
        with engine.starting(model=SimpleNamespace(), tokenizer=None, folder=tmp_path):
            ports.add(os.environ["MASTER_PORT"])
    assert len(ports) == 2
    assert "29500" not in ports  # which trl would take in both
    monkeypatch.setenv("MASTER_PORT", "1234")
    with engine.starting(model=SimpleNamespace(), tokenizer=None, folder=tmp_path):
        assert os.environ["MASTER_PORT"] == "1234"


@pytest.mark.parametrize("has_flashinfer", [True, False])
def test_a_checkpoint_is_loaded_by_vllm_itself(monkeypatch, tmp_path, has_flashinfer):
    monkeypatch.setattr("profiler.training.rollouts.vllm.find_spec", lambda _: object() if has_flashinfer else None)
    monkeypatch.delenv("VLLM_USE_FLASHINFER_SAMPLER", raising=False)
    monkeypatch.setenv("VLLM_NO_USAGE_STATS", "1")
    monkeypatch.setenv("MASTER_PORT", "1234")
    model = SimpleNamespace(name_or_path="a/checkpoint")
    engine = VllmRollout(spec(backend=Backend.CUDA, weights=Weights.PRETRAINED))
    with engine.starting(model=model, tokenizer=None, folder=tmp_path):
        assert model.name_or_path == "a/checkpoint"
        assert os.environ.get("VLLM_USE_FLASHINFER_SAMPLER") == (None if has_flashinfer else "0")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ("Free memory on device is less than desired GPU memory utilization (0.9).", torch.OutOfMemoryError),
        ("No available memory for the cache blocks.", UnsupportedTrialError),
        ("something else", ValueError),
    ],
)
def test_an_engine_that_cannot_start_is_an_answer(tmp_path, said, expected):
    engine = VllmRollout(spec(backend=Backend.CUDA, weights=Weights.PRETRAINED))
    with pytest.raises(expected, match=said[:20]), engine.starting(model=None, tokenizer=None, folder=tmp_path):
        raise ValueError(said)


def test_blocks_refuse_a_part_of_the_card_without_a_cache(tmp_path):
    model = SimpleNamespace(config=AutoConfig.for_model(**find_builtin("qwen2.5-7b").config))
    small = spec(model="qwen2.5-7b", gpu="t4-16gb")
    with pytest.raises(UnsupportedTrialError, match=r"=0\.4 of t4-16gb is 5\.9 GiB, weights and activations"):
        rollout_engine(small, CPU).starting(model=model, tokenizer=None, folder=tmp_path)
