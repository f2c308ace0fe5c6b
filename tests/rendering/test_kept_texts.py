"""What commands print and write for given inputs is what they printed before, to the byte.

`kept_texts/` has a file per output. If a change is meant, `TEXTS_KEPT=new` writes them again.
"""

import os
import pickle
from dataclasses import replace
from pathlib import Path

import builders
import pandas as pd
import pytest
from own_histories import ALLOC, FREE, recorded

from maintenance.accuracy.judgement import page_of, read_judgements
from profiler.advise.main import main as advise
from profiler.domain.runs.outcome import Status, Versions
from profiler.domain.trials.trial import PlannedTrial, TrialSpec
from profiler.estimate.main import answer
from profiler.estimate.main import main as estimate
from profiler.rendering.live.plan_table import plan_table
from profiler.rendering.sweep.differences import versions_table
from profiler.replay.main import main as replay
from profiler.report.main import main as report
from profiler.solve.main import main as solve

KEPT = Path(__file__).with_name("kept_texts")
ROOT = Path(__file__).parents[2]
SPECS = builders.lora_vs_full_specs(["qwen2.5-0.5b", "qwen2.5-3b"])


def check(name: str, text: str) -> None:
    path = KEPT / f"{name}.txt"
    if os.environ.get("TEXTS_KEPT") == "new":
        path.write_text(text, encoding="utf-8", newline="")
    assert text == path.read_text(encoding="utf-8")


# The growth of peaks, and the versions of environments


def _folder(path: Path, specs: list[TrialSpec], *, scale: float = 1.0, failed: int = 0) -> str:
    records = [builders.record(spec, outcome=builders.outcome(spec, scale=scale)) for spec in specs]
    for number, message in enumerate(["", "it ended | <early>\n*why*", "it ended | <early>\n*why*"][:failed]):
        records[number] = replace(records[number], outcome=builders.failed(Status.FAILED, message))
    return str(builders.write_folder(path, records))


@pytest.mark.parametrize(
    ("name", "scale", "failed", "before", "after"),
    [
        ("equal", 1.0, 0, SPECS, SPECS),
        ("grown", 1.03, 0, SPECS, SPECS),
        ("lost", 1.03, 3, SPECS, SPECS),
        ("only_in_one", 1.0, 1, SPECS[:6], SPECS[3:]),
        ("nothing_in_common", 1.0, 0, SPECS[:1], SPECS[1:2]),
        (
            "many",
            1.0,
            0,
            [replace(SPECS[0], seed=seed) for seed in range(60)],
            [replace(SPECS[0], seed=s) for s in range(55)],
        ),
    ],
)
def test_the_growth_of_peaks(tmp_path, capsys, name, scale, failed, before, after):
    folders = [_folder(tmp_path / "a_*old*", before), _folder(tmp_path / "b|new", after, scale=scale, failed=failed)]
    report([*folders, "max_increase=2%"])
    check(f"growth_{name}", capsys.readouterr().out)


@pytest.mark.parametrize("name", ["equal", "different"])
def test_versions_of_environments(name):
    one = Versions(
        torch="2.9.0+cu128", trl="1.16.0", transformers="5.0", peft=None, bitsandbytes=None, profiler="1.0", vllm="0.9"
    )
    other = one if name == "equal" else replace(one, torch="2.8.0_x", peft="0.17")
    check(f"versions_{name}", versions_table({"now": one, "an_other|one": other}))


# The plan of a dry run


@pytest.mark.parametrize("knows_ids", [True, False])
def test_the_plan_of_a_dry_run(knows_ids):
    cards = [*SPECS[:3], *(replace(spec, gpu="rtx-4090-24gb") for spec in SPECS[5:]), replace(SPECS[0], gpu=None)]
    records = [builders.record(spec, outcome=builders.outcome(spec)) for spec in cards]
    estimates = builders.estimates(records[:-2] + records[-1:])
    plan = [builders.planned(record) for record in records]
    check(f"plan_{knows_ids}", plan_table(plan, estimates, knows_ids=knows_ids).removesuffix("\n"))


def test_the_plan_without_trials():
    plan: list[PlannedTrial] = []
    check("plan_empty", plan_table(plan, {}).removesuffix("\n"))


# An out-of-memory error

OOM = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate {requested}. GPU 0 has a total capacity of "
    "{total} of which {free} is free. Including non-PyTorch memory, this process has 14.43 GiB memory in use. Of the "
    "allocated memory 11.82 GiB is allocated by PyTorch, and {unused} is reserved by PyTorch but unallocated.\n"
)
LAPTOP = OOM.format(requested="1.90 GiB", total="15.73 GiB", free="1.28 GiB", unused="2.41 GiB")
JOB = ("model=llama-3.2-1b", "logprobs=full", "optim=adamw_8bit", "gradient_checkpointing=false", "confirm=false")
TRACEBACK = '  File "trl/trainer/grpo_trainer.py", line 1, in _generate_and_score_completions\n    x\n'


@pytest.mark.parametrize(
    ("name", "log", "words"),
    [
        ("alone", LAPTOP, ()),
        ("alone_with_phase", f"Traceback (most recent call last):\n{TRACEBACK}{LAPTOP}", ()),
        ("nearest", LAPTOP, JOB),
        ("tensor", LAPTOP, (*JOB, "lengths=forced", "max_prompt_length=208")),
        ("other_card", OOM.format(requested="3.00 GiB", total="79.10 GiB", free="0.10 GiB", unused="0.20 GiB"), JOB),
    ],
)
def test_an_out_of_memory_error(tmp_path, capsys, name, log, words):
    file = tmp_path / "train.log"
    file.write_text(log)
    assert advise([f"oom={file}", *words]) == 0
    check(f"refusal_{name}", capsys.readouterr().out)


# A job of verl

ACTOR, ROLLOUT, MODEL = (f"actor_rollout_ref.{part}" for part in ("actor", "rollout", "model"))
GRPO = ("algorithm.adv_estimator=grpo", f"{MODEL}.path=qwen2.5-7b")
VERL = {
    "basic": (f"config={ROOT / 'examples/verl/basic.yaml'}",),
    "optimised": (f"config={ROOT / 'examples/verl/optimised.yaml'}", "gpu=a100-40gb"),
    "extreme": (f"config={ROOT / 'examples/verl/extreme.yaml'}", "gpu=t4-16gb"),
    "critic": (f"{MODEL}.path=qwen2.5-7b", "algorithm.adv_estimator=gae", "gpu=l40s-48gb"),
    "megatron": ("config=verl-megatron", *GRPO),
    "not_decided": ("config=verl", *GRPO, f"{MODEL}.lora_rank=32", f"{MODEL}.use_liger=true"),
    "not_possible": ("config=verl", *GRPO, "data.max_prompt_length=32768", f"{ACTOR}.ppo_mini_batch_size=3000"),
    "by_mean_length": (
        "config=verl",
        *GRPO,
        "data.max_prompt_length=1024",
        "data.max_response_length=1024",
        "trainer.n_gpus_per_node=2",
        f"{MODEL}.use_remove_padding=true",
        f"{ACTOR}.ppo_micro_batch_size_per_gpu=16",
        f"{ACTOR}.fsdp_config.param_offload=true",
        f"{ACTOR}.fsdp_config.optimizer_offload=true",
    ),
    "pool_stays": ("config=verl", *GRPO, f"{ROLLOUT}.free_cache_engine=false", f"{ROLLOUT}.gpu_memory_utilization=0.7"),
}


@pytest.mark.parametrize("name", VERL)
def test_a_job_of_verl(name):
    check(f"verl_{name}", answer(list(VERL[name])))


@pytest.mark.parametrize("name", VERL)
def test_a_job_of_verl_for_programs(name):
    check(f"verl_{name}_json", answer([*VERL[name], "format=json"]))


# Answers about one job

SEVEN_B = ("model=qwen2.5-7b", "tuning=lora", "gpu=rtx-4090-24gb")
PRICES = f"prices={ROOT / 'examples/prices/example.csv'}"
ZERO_3 = ("num_processes=4", "distributed_type=deepspeed", "zero_stage=3")
ANSWERS = {
    "estimate": (estimate, SEVEN_B),
    "estimate_in_full": (estimate, (*SEVEN_B, "details=true")),
    "estimate_sharded": (estimate, ("model=qwen2.5-32b", *ZERO_3, "gpu=h100-80gb", "details=true")),
    "estimate_sft": (estimate, ("recipe=sft", "model=llama-3.2-1b", "details=true")),
    "estimate_vllm": (estimate, (*SEVEN_B, "use_vllm=true", "details=true")),
    "verl_in_full": (answer, (*VERL["critic"], "details=true")),
    "cards": (estimate, (*SEVEN_B[:2], "gpu=any")),
    "cards_with_prices": (estimate, (*SEVEN_B[:2], "gpu=any", PRICES, "use_vllm=true")),
    "cards_json": (estimate, (*SEVEN_B[:2], "gpu=any", PRICES, "format=json")),
    "solved_key": (solve, ("max_completion_length", *SEVEN_B)),
    "solved_keys": (solve, ("per_device_train_batch_size", *SEVEN_B, "beta=0,0.04", "margin=5%")),
    "solved_sharded": (
        solve,
        (
            "max_completion_length",
            "model=qwen2.5-32b",
            "num_processes=8",
            "distributed_type=fsdp,deepspeed",
            SEVEN_B[2],
        ),
    ),
    "solved_none": (solve, ("max_completion_length", "model=qwen2.5-32b", "gpu=t4-16gb")),
    "solved_key_json": (solve, ("max_completion_length", *SEVEN_B, "format=json")),
    "solved_card": (solve, ("gpu", *SEVEN_B[:2], "margin=10%")),
    "solved_card_none": (solve, ("gpu", "model=qwen2.5-72b")),
    "solved_card_json": (solve, ("gpu", *SEVEN_B[:2], "format=json")),
    "solved_line": (solve, ("lora_rank,max_completion_length", *SEVEN_B)),
    "solved_line_json": (solve, ("lora_rank,max_completion_length", *SEVEN_B, "format=json")),
    "advice": (advise, ("model=qwen2.5-7b", "gpu=rtx-4090-24gb")),
    "advice_none": (advise, ("model=qwen2.5-32b", "gpu=t4-16gb", "margin=5%")),
    "advice_sharded": (advise, ("model=qwen2.5-32b", *ZERO_3, "gpu=a100-40gb")),
    "advice_vllm": (advise, (*SEVEN_B, "use_vllm=true", "gradient_checkpointing=false", "logprobs=full", "beta=0.04")),
    "advice_json": (advise, ("model=qwen2.5-7b", "gpu=rtx-4090-24gb", "format=json")),
}
DECIDES = {solve: ("confirm=false",), advise: ("confirm=false",)}


@pytest.mark.parametrize("name", ANSWERS)
def test_an_answer_about_one_job(capsys, name):
    command, words = ANSWERS[name]
    found = command([*words, *DECIDES.get(command, ())])
    check(f"answer_{name}", found if isinstance(found, str) else capsys.readouterr().out)


# A replayed history

MIB = 1024 * 1024


def _history(*, refused: int) -> dict:
    """A history in which as many requests are refused; the last line of code holds most of the memory."""
    history = recorded([], capacity_bytes=5000 * MIB)
    for line, size in ((3, 1500), (8, 1000), (21, 1400)):
        history.allocator.frames = [{"filename": "/job/train-the-model.py", "line": line, "name": "step"}]
        history.do((ALLOC, 1500 * MIB, 0))
        history.do((FREE, len(history.live) - 1, 0))
        history.do((ALLOC, size * MIB, 0))
    for _ in range(refused):
        history.do((ALLOC, 2000 * MIB, 0))
    return history.snapshot()


@pytest.mark.parametrize(
    ("name", "refused", "words"),
    [
        ("refused", 1, ()),
        ("often_refused", 140, ("gpu=rtx-4090-24gb",)),
        ("other_card", 0, ("gpu=t4-16gb", "alloc_conf=max_split_size_mb:128")),
        ("json", 1, ("format=json",)),
    ],
)
def test_a_replayed_history(tmp_path, monkeypatch, capsys, name, refused, words):
    monkeypatch.chdir(tmp_path)
    Path("run.pickle").write_bytes(pickle.dumps(_history(refused=refused)))
    replay(["run.pickle", *words])
    check(f"replay_{name}", capsys.readouterr().out)


# The accuracy of the closed form


def test_the_page_of_the_accuracy_is_made_again_as_it_is():
    folder = ROOT / "results" / "reference" / "accuracy"
    simulated, rows = (pd.read_parquet(folder / name) for name in ("simulated.parquet", "rows.parquet"))
    text = page_of(simulated, rows, read_judgements(folder))
    assert text == (folder / "accuracy.md").read_text(encoding="utf-8")
