"""Trials and jobs of many kinds, and every line that the closed form says of them.

A group has trials of one source: kept ones, those of a grid, or sampled ones of one way to train on several GPUs. The
sample is taken by a seed, so it is the same each time. ESTIMATES_EVERY=1 takes all of it, which takes minutes.
"""

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from itertools import product
from pathlib import Path
from random import Random
from typing import Any

import pyarrow.parquet as pq

from maintenance.samples.sampling import kept_text, read_sampled
from maintenance.verl_tuning import MEAN_ROW, jobs_of
from profiler.analytical.baselines import baseline_view
from profiler.analytical.estimate import estimate, has_form
from profiler.analytical.explanation.boundary import verl_fit
from profiler.analytical.explanation.engine_start import engine_start_text
from profiler.analytical.explanation.explained import fit_of, needed_of
from profiler.analytical.explanation.tensors import named_tensors
from profiler.analytical.many import estimate_specs, fits_in_arrays
from profiler.analytical.timeline.recipes.registry import trial_instants
from profiler.analytical.timeline.recipes.verl import verl_estimate
from profiler.config.models.architecture import read_architecture
from profiler.config.models.lookup import builtin_architecture
from profiler.config.trials.grid import expand, read_grid
from profiler.config.trials.identity import stable_mapping
from profiler.config.trials.specification import parse_point, parse_points
from profiler.config.verl.config import read_verl
from profiler.domain.architectures.architecture import Architecture
from profiler.domain.cards.gpu import KNOWN_GPUS
from profiler.domain.errors import UsageError
from profiler.domain.memory import Category
from profiler.domain.runs.outcome import Estimate
from profiler.domain.trials.trial import SPEC_KEYS, TrialSpec
from profiler.domain.verl import EntropySettings, Strategy, TrainedModel, VerlJob
from profiler.estimate.main import answer
from profiler.sweep.command import read_command
from profiler.sweep.prepared.composition import compose

ROOT = Path(__file__).parents[2]
REFERENCE = ROOT / "results" / "reference"
KEPT_EVERY = 24
EVERY = int(os.environ.get("ESTIMATES_EVERY", KEPT_EVERY))
"""One of how many trials, jobs and command lines is looked at."""
SEED = 27
TRIALS_PER_GROUP = 432 // EVERY
VERL_JOBS = 304 // EVERY
_LISTS = ("lora_target_modules", "reward_models")

CONFIGS: Mapping[str, Mapping[str, object]] = {
    "mixture": {
        "model_type": "qwen3_moe",
        "hidden_size": 1024,
        "intermediate_size": 3072,
        "num_hidden_layers": 12,
        "num_attention_heads": 16,
        "num_key_value_heads": 4,
        "head_dim": 64,
        "vocab_size": 151_936,
        "max_position_embeddings": 40_960,
        "tie_word_embeddings": False,
        "moe_intermediate_size": 768,
        "num_experts": 32,
        "num_experts_per_tok": 4,
    },
}
"""Models that are not built in."""

MODELS = (
    *("tiny", "qwen2.5-0.5b", "qwen2.5-7b", "llama-3.2-1b", "qwen3-8b", "gemma-2-2b"),
    *("qwen2.5-32b", "qwen2.5-vl-3b", "mixture"),
)
PLACES: Mapping[str, Sequence[Mapping[str, object]]] = {
    "alone": ({},),
    "ddp": ({"distributed_type": "multi_gpu"},),
    "fsdp": (
        {"distributed_type": "fsdp"},
        {"distributed_type": "fsdp", "fsdp_reshard_after_forward": False},
        {"distributed_type": "fsdp", "gradient_checkpointing": False, "fsdp_activation_checkpointing": True},
    ),
    **{
        f"zero{stage}": tuple(
            {"distributed_type": "deepspeed", "zero_stage": stage, **offload}
            for offload in (
                {},
                {"offload_optimizer_device": "cpu"},
                {"offload_optimizer_device": "cpu", "offload_param_device": "cpu"},
            )
        )
        for stage in range(4)
    },
}
"""Ways to train, by group."""

CHOICES: Mapping[str, Sequence[object]] = {
    "recipe": ("grpo", "grpo", "rloo", "sft"),
    "gpu": ("h100-80gb", "a100-40gb", "t4-16gb", "rtx-4090-24gb"),
    "tuning": ("full", "lora", "qlora"),
    "lora_rank": (8, 16, 64),
    "lora_target_modules": (["all-linear"], ["q_proj", "v_proj"], ["o_proj", "down_proj"]),
    "lora_dropout": (0.0, 0.0, 0.05),
    "bnb_4bit_use_double_quant": (True, False),
    "optim": (
        *("adamw_torch_fused", "adamw_torch", "adafactor", "sgd", "adamw_8bit", "paged_adamw_8bit"),
        *("paged_adamw_32bit", "lion_8bit", "paged_ademamix_8bit"),
    ),
    "num_generations": (2, 4, 8),
    "max_prompt_length": (64, 256, 1000, 2048),
    "max_completion_length": (64, 786, 4096),
    "max_length": (128, 1024, 4096),
    "lengths": ("ragged", "forced"),
    "per_device_train_batch_size": (1, 2, 4, 8, 16),
    "gradient_accumulation_steps": (1, 2, 4, 8),
    "steps_per_generation": (1, 2, 4, 8),
    "gradient_checkpointing": (True, True, False),
    "beta": (0.0, 0.0, 0.04),
    "attn_implementation": ("sdpa", "sdpa", "eager", "flash_attention_2"),
    "dtype": ("bfloat16", "bfloat16", "float16", "float32"),
    "bf16": (True, True, False),
    "logprobs": ("fused", "fused", "sliced", "full", "minibatch"),
    "use_liger_kernel": (False, False, True),
    "rollout": ("generate", "generate", "synthetic"),
    "use_vllm": (False, False, False, True),
    "vllm_mode": ("colocate", "server"),
    "vllm_gpu_memory_utilization": (0.05, 0.3, 0.6),
    "vllm_enable_sleep_mode": (False, True),
    "vllm_tensor_parallel_size": (1, 2, 4),
    "critic": (False, False, False, True),
    "reward_models": (None, None, None, ["qwen2.5-0.5b"]),
    "per_device_eval_batch_size": (None, None, None, 8),
    "images_per_prompt": (None, 1, 2),
    "steps": (1, 2, 3),
    "alloc_conf": ("", "", "expandable_segments:True", "roundup_power2_divisions:8"),
}
"""Values of the keys of a sampled trial; a value that is listed twice is taken twice as often."""


@cache
def architecture_of(model: str) -> Architecture:
    """Return a model by its name."""
    return builtin_architecture(model) or read_architecture(CONFIGS[model], model=model)


def with_rewards(spec: TrialSpec) -> Architecture:
    """Return the model of a trial with its reward models."""
    rewards = tuple(architecture_of(name) for name in spec.reward_models or ())
    return replace(architecture_of(spec.model), reward_models=rewards)


def trial_groups() -> dict[str, list[TrialSpec]]:
    """Return the trials of each group that have a closed form, each trial once."""
    found = {f"kept {path.parent.name}": _of_table(path) for path in sorted(REFERENCE.glob("*/runs.parquet"))}
    for folder in sorted(path.parent for path in REFERENCE.glob("*/sampled.*")):
        found[f"sampled {folder.name}"] = list(read_sampled(kept_text(folder)))
    found |= {f"grid {path.stem}": _of_grid(path.stem) for path in sorted((ROOT / "sweeps/grid").glob("*.yaml"))}
    found |= {f"random {name}": list(_random_trials(name, ways)) for name, ways in PLACES.items()}
    seen: set[TrialSpec] = set()
    for name, specs in found.items():
        new = [spec for spec in dict.fromkeys(specs) if spec not in seen and _has_form(spec)]
        seen.update(new)
        found[name] = new if name.startswith("random") else new[::EVERY]
    return found


def _has_form(spec: TrialSpec) -> bool:
    is_known = spec.model in CONFIGS or builtin_architecture(spec.model) is not None
    return is_known and has_form(spec, with_rewards(spec))


def _of_table(path: Path) -> list[TrialSpec]:
    rows = pq.read_table(path, columns=[key for key in pq.read_schema(path).names if key in SPEC_KEYS]).to_pylist()
    return [_stored(row) for row in rows]


def _stored(row: Mapping[str, Any]) -> TrialSpec:
    """Return a trial of a table, which joins lists by commas and has no value for a key without meaning."""
    values = {key: value for key, value in row.items() if value is not None}
    lists = {key: values[key].split(",") for key in _LISTS if key in values}
    return parse_point({**values, **lists}, architecture_of=architecture_of)


def _of_grid(grid: str) -> list[TrialSpec]:
    command = read_command([f"+grid={grid}", "backend=simulated"])
    points = expand(read_grid(grid, compose(command)), command.axes)
    return list(parse_points(points, architecture_of=architecture_of))


def _random_trials(name: str, ways: Sequence[Mapping[str, object]]) -> Iterator[TrialSpec]:
    random, number = Random(f"{SEED} {name}"), 0
    while number < TRIALS_PER_GROUP:
        model = random.choice(MODELS)
        values = {key: random.choice(values) for key, values in CHOICES.items()}
        given = {"backend": "simulated", "model": model, **values, **random.choice(ways)}
        given["num_processes"] = random.choice((2, 3, 4, 8)) if "distributed_type" in given else 1
        for _ in range(4):
            try:
                spec = parse_point(given, architecture_of=architecture_of)
            except UsageError as error:
                # A key that has no meaning with the others is left out, and another fault ends the point.
                given = {key: value for key, value in given.items() if key not in {each.key for each in error.faults}}
                continue
            if has_form(spec, with_rewards(spec)):
                number += 1
                yield spec
            break


def trial_lines(spec: TrialSpec) -> list[str]:
    """Return everything that is said of one trial."""
    shape = with_rewards(spec)
    found = estimate(spec, shape)
    lines = [json.dumps(stable_mapping(spec), sort_keys=True), _text(found)]
    for instant in trial_instants(spec, shape):
        sizes = {name.value: int(instant.sizes.get(name, 0)) for name in Category}
        forms = {str(name): text for name, text in instant.words().items()}
        shares = "; ".join(f"{name} {size} = {forms[name]}" for name, size in sizes.items() if size)
        lines.append(f"  {instant.phase}, {instant.name}, {bool(instant.happens)}: {shares}")
    if spec.gpu is not None:
        lines.append(f"  {_verdict(spec, found, engine_start_text(spec, shape))}")
    lines += [f"  {each.name} {each.shape} {each.size_bytes} {each.happens}" for each in named_tensors(spec, shape)]
    return lines


def _verdict(spec: TrialSpec, found: Estimate, no_engine: str) -> str:
    fit = fit_of(spec, KNOWN_GPUS[str(spec.gpu)], needed_of(spec, found), engine_starts=not no_engine)
    return f"{fit} {no_engine}"


def _text(found: Estimate) -> str:
    parts = " ".join(f"{share.category}={share.size_bytes}" for share in found.breakdown)
    peaks = f"{found.peak_allocated_bytes} {found.peak_reserved_bytes} {found.peak_rule_bytes}"
    return f"  {peaks} {found.peak_phase} {parts}"


def array_lines(specs: Sequence[TrialSpec]) -> list[str]:
    """Return what is estimated of trials together, with arrays."""
    fitting = [spec for spec in specs if fits_in_arrays(spec) and spec.reward_models is None]
    if not fitting:
        return []
    table = estimate_specs(fitting, {spec.model: architecture_of(spec.model) for spec in fitting})
    return [
        f"{_text(table.estimate(row))} " + " ".join(f"{phase}={int(of[row])}" for phase, of in table.phases.items())
        for row in range(len(fitting))
    ]


_CARDS = ("a100-40gb", "a100-80gb", "h100-80gb", "h200-141gb")


def verl_jobs() -> list[tuple[str, VerlJob]]:
    """Return the jobs of verl's table, and sampled ones, each with a card."""
    table = [
        (job["gpu"], read_verl(job["keys"], megatron=job["megatron"])) for job in jobs_of(REFERENCE / "verl_tuning")
    ]
    found = [(gpu, job) for gpu, each in table for job in (each.job, each.job_at(MEAN_ROW))]
    random = Random(SEED)
    return found[::EVERY] + [(random.choice(_CARDS), _random_job(random)) for _ in range(VERL_JOBS)]


def _random_job(random: Random) -> VerlJob:
    strategy, tensor, pipeline = random.choice(tuple(Strategy)), 1, 1
    if strategy is Strategy.MEGATRON:
        tensor, pipeline = random.choice((1, 2, 4)), random.choice((1, 2))
    return VerlJob(
        model=random.choice(("qwen2.5-0.5b", "qwen2.5-7b", "llama-3.1-8b", "gemma-2-2b", "qwen3-8b")),
        n_gpus=(gpus := random.choice((8, 16, 48))),
        strategy=strategy,
        actor=_random_model(random),
        critic=_random_model(random) if random.random() < 0.4 else None,
        has_reference=random.random() < 0.6,
        ref_param_offload=random.random() < 0.5,
        log_prob_max_tokens=random.choice((1_000, 16_384, 33_333)),
        fsdp_size=random.choice((1, 3, 8, gpus)),
        reshard_after_forward=random.random() < 0.6,
        tensor_model_parallel_size=tensor,
        pipeline_model_parallel_size=pipeline,
        use_fused_kernels=random.random() < 0.3,
        lora_rank=random.choice((0, 0, 16, 64)),
        lora_target_modules=random.choice((("all-linear",), ("q_proj", "v_proj"))),
        max_prompt_length=random.choice((512, 1_024)),
        max_response_length=random.choice((1_024, 8_192)),
        train_batch_size=random.choice((64, 1_000)),
        rollout_n=random.choice((1, 5, 8)),
        rollout_tensor_parallel_size=random.choice((1, 2, 4)),
        gpu_memory_utilization=random.choice((0.3, 0.55, 0.9)),
        entropy=EntropySettings(**{name: random.random() < 0.4 for name in EntropySettings.__dataclass_fields__}),
        free_cache_engine=random.random() < 0.7,
    )


def _random_model(random: Random) -> TrainedModel:
    flags = ("param_offload", "optimizer_offload", "offload_policy", "activation_offload", "accumulates")
    return TrainedModel(
        weight_bytes=random.choice((2, 4)),
        max_tokens=random.choice((1_000, 16_384, 65_537)),
        gradient_checkpointing=random.random() < 0.7,
        **{name: random.random() < 0.4 for name in flags},
    )


def verl_lines(gpu: str, job: VerlJob) -> list[str]:
    """Return everything that is said of one job of verl."""
    shape, card = architecture_of(job.model), KNOWN_GPUS[gpu]
    found = verl_estimate(job, shape, card)
    view = baseline_view(found, shape)
    lines = [f"{gpu} {job}", f"  {found.peak_phase} {found.peak_bytes} {found.training_peak_bytes}"]
    for phase, parts in found.phases.items():
        lines.append(f"  {phase}: " + "; ".join(f"{name} {size}" for name, size in parts.items()))
    lines.append(f"  {found.engine_weights_bytes} {found.kv_demand_bytes} {view.ours_bytes} {view.report_bytes}")
    lines += [f"  {each.reason} {each.size_bytes}" for each in view.differences]
    fit = verl_fit(job, lambda _: job, shape, card, removes_padding=False)
    return [*lines, f"  {fit.fit} {fit.longest_row}"]


_ACTOR = "actor_rollout_ref.actor"
_VERL = (
    (),
    ("gpu=a100-40gb",),
    ("algorithm.adv_estimator=gae",),
    (f"{_ACTOR}.strategy=fsdp2", f"{_ACTOR}.fsdp_config.offload_policy=true"),
    (f"{_ACTOR}.fsdp_config.reshard_after_forward=false", "trainer.n_gpus_per_node=2"),
    ("actor_rollout_ref.model.lora_rank=32", "actor_rollout_ref.model.use_remove_padding=true"),
    (f"{_ACTOR}.use_dynamic_bsz=true", f"{_ACTOR}.ppo_max_token_len_per_gpu=24000"),
    (f"{_ACTOR}.entropy_coeff=0.001", "actor_rollout_ref.model.use_fused_kernels=true"),
    ("critic.model.lora_rank=8",),
)
_WAYS = (
    "",
    "num_processes=2",
    "num_processes=4 distributed_type=fsdp",
    "num_processes=8 distributed_type=fsdp fsdp_reshard_after_forward=false beta=0.04",
    *(f"num_processes=4 distributed_type=deepspeed zero_stage={stage}" for stage in range(4)),
    "num_processes=8 distributed_type=deepspeed zero_stage=3 offload_param_device=cpu offload_optimizer_device=cpu",
)


def command_lines() -> list[tuple[str, ...]]:
    """Return command lines of `estimate`, without those of the exit code."""
    trials = [
        f"model={model} {how} {way}"
        for model, how in product(("qwen2.5-0.5b", "qwen2.5-7b"), ("tuning=full", "tuning=lora format=json"))
        for way in _WAYS
    ]
    others = ["model=qwen2.5-0.5b,qwen2.5-7b num_generations=4,8", "model=qwen2.5-7b gpu=any tuning=lora"]
    jobs = [
        (f"config={ROOT}/examples/verl/{name}.yaml", *words, *how)
        for name in ("basic", "optimised", "extreme")
        for words in _VERL
        for how in ((), ("format=json",))
    ]
    megatron = ("algorithm.adv_estimator=grpo", "actor_rollout_ref.model.path=Qwen/Qwen2.5-7B")
    sizes = (f"{_ACTOR}.megatron.tensor_model_parallel_size=2", f"{_ACTOR}.strategy=megatron")
    return [(*megatron, *sizes), megatron, *(tuple(text.split()) for text in (*others, *trials)), *jobs][::EVERY]


def printed_lines(words: Sequence[str]) -> list[str]:
    """Return what `estimate` prints for one command line, or why it refuses it."""
    try:
        text = answer(words)
    except UsageError as error:
        text = "\n".join(fault.sentence() for fault in error.faults)
    shown = " ".join(words).replace(str(ROOT), "ROOT")
    return [shown, *(f"  {line}" for line in text.replace(str(ROOT), "ROOT").splitlines())]
