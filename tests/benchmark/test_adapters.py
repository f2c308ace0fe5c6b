"""Adapters: formulas worked by hand, what is not covered, and asking another Python."""

import sys
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from maintenance.benchmark.adapters import formulas, own, packages
from maintenance.benchmark.adapters.packages import (
    agilerl,
    canifinetune,
    fitcheck,
    fsdp_mem_tracker,
    kitsune,
    llm_analysis,
    mem_tracker,
    unsloth,
    vram_check,
)
from maintenance.benchmark.adapters.question import NotCoveredError, Question
from maintenance.benchmark.answers import asked, environments
from maintenance.benchmark.answers.asking import Answer, answers_text, ask, kept_answers, question_of
from maintenance.benchmark.answers.predictors import PREDICTORS, Predictor
from maintenance.benchmark.rows.kept import all_rows

ADAPTERS = Path(packages.__file__).parent
CONFIG = {"hidden_size": 100, "intermediate_size": 300, "num_hidden_layers": 2, "num_attention_heads": 4,
          "num_key_value_heads": 2, "vocab_size": 1000, "tie_word_embeddings": False,
          "model_type": "llama"}  # fmt: skip
JOB = {
    "recipe": "sft", "tuning": "full", "optim": "adamw_torch", "num_processes": 1, "distributed_type": "no",
    "zero_stage": None, "offload_optimizer_device": None, "offload_param_device": None, "lora_rank": 8,
    "lora_target_modules": ["all-linear"], "per_device_train_batch_size": 2, "max_length": 50, "dtype": "bfloat16",
    "bf16": False, "use_liger_kernel": False, "gradient_checkpointing": True, "model": "made-up", "gpu": "t4-16gb",
    "max_prompt_length": 30, "max_completion_length": 40, "bnb_4bit_use_double_quant": True, "num_generations": 4,
    "attn_implementation": "sdpa", "lora_dropout": 0.0, "beta": 0.0, "fp16": False, "activation_offloading": False,
    "logprobs": "fused", "gradient_accumulation_steps": 1, "fsdp_version": None, "fsdp_offload_params": None,
    "fsdp_activation_checkpointing": None, "fsdp_reshard_after_forward": None, "cp_size": None,
    "fsdp_cpu_ram_efficient_loading": False,
}  # fmt: skip


def question(**job):
    return Question(
        row_id="made-up", job={**JOB, **job}, config=CONFIG, parameters=10**6, card="A card", card_bytes=16 << 30
    )


BUILT = 2 * (100 * (96 + 48 + 48 + 96) + 3 * 100 * 300 + 200) + 100 + 2 * 100_000
"""Parameters of CONFIG with heads of 24: two layers of attention, MLP and norms; a norm; the embedding and the head."""


def built(**job):
    return replace(question(**job), config={**CONFIG, "head_dim": 24})


@pytest.mark.parametrize(
    ("job", "size"),
    [
        # 2 bytes of each parameter, and 18 shared by four: 2e6 + 4.5e6.
        ({"zero_stage": 2, "num_processes": 4}, 6_500_000),
        ({"zero_stage": 2, "num_processes": 4, "offload_optimizer_device": "cpu"}, 2_000_000),
        # 4 bytes of the embedding, 1,000 x 100, and 18 of each parameter shared by four.
        ({"zero_stage": 3, "num_processes": 4}, 400_000 + 4_500_000),
        ({"zero_stage": 3, "num_processes": 4, "offload_optimizer_device": "cpu"}, 400_000 + 500_000),
        (
            {"zero_stage": 3, "num_processes": 4, "offload_optimizer_device": "cpu", "offload_param_device": "cpu"},
            400_000,
        ),
    ],
)
def test_deepspeed_counts_states_of_the_model(job, size):
    assert formulas.deepspeed(question(distributed_type="deepspeed", **job)) == {"allocated": size}


def test_training_hub_counts_four_float32_copies_and_all_logits():
    # Without the head of 100,000: 900,000 x 16; activations 100 tokens x 4 x 2 x 100; logits 100 x 4 x 1,000 x 8/3.
    total = 900_000 * 16 + 80_000 + 400_000 * 8 / 3
    assert formulas.training_hub(question()) == {"allocated": int(total), "device": int(1.1 * total)}


def test_training_hub_counts_adapters_of_all_projections():
    # Per layer: q and o 100 + 100, k and v 100 + 50, three of the MLP 100 + 300; two layers; rank 8.
    adapted = 2 * (2 * 200 + 2 * 150 + 3 * 400) * 8
    outputs = 100 * 2 * 1000 * 2
    total = 900_000 * 2 + adapted * 4 + adapted * 2 * 2 + 100 * 2 * 2 * 100 + outputs
    assert formulas.training_hub(question(tuning="lora"))["allocated"] == int(total)


@pytest.mark.parametrize("adapter", [fitcheck, canifinetune, agilerl, llm_analysis, kitsune, vram_check])
def test_a_package_that_is_missing_is_no_answer(adapter):
    with pytest.raises(ImportError):
        adapter.answer(question())


@pytest.mark.parametrize(
    ("call", "job"),
    [
        (formulas.deepspeed, {"distributed_type": "fsdp"}),
        (formulas.deepspeed, {"distributed_type": "deepspeed", "zero_stage": 2, "tuning": "lora"}),
        (formulas.training_hub, {"recipe": "grpo"}),
        (formulas.training_hub, {"optim": "sgd"}),
        (mem_tracker.answer, {"recipe": "grpo"}),
        (mem_tracker.answer, {"tuning": "lora"}),
        (mem_tracker.answer, {"optim": "adamw_8bit"}),
        (mem_tracker.answer, {"num_processes": 2}),
        (fsdp_mem_tracker.answer, {"distributed_type": "multi_gpu"}),
    ],
)
def test_a_job_that_is_not_covered_is_refused_by_its_key(call, job):
    with pytest.raises(NotCoveredError, match="=".join(map(str, list(job.items())[-1]))):
        call(question(**job))


def test_a_question_names_what_all_adapters_need():
    asked_row = question(recipe="grpo", tuning="qlora", dtype="float32")
    assert (asked_row.length, question().length) == (70, 50)
    assert asked_row.heads == (4, 2, 25)
    assert len(asked_row.targets) == 7
    assert (asked_row.half_type, question().half_type) == ("fp16", "bf16")


def test_adapters_are_short_and_of_the_predictors_with_packages():
    files = {path.stem for path in ADAPTERS.glob("*.py")} - {"__init__"}
    assert files == {each.key for each in PREDICTORS.values() if each.package}
    assert all(len((ADAPTERS / f"{name}.py").read_text().splitlines()) <= 60 for name in files)


def test_packages_are_pinned_and_every_predictor_can_be_asked():
    for each in PREDICTORS.values():
        assert ("==" in each.package) == bool(each.package)
        assert sum(way is not None for way in (each.from_row, each.from_question)) == (0 if each.package else 1)


def test_a_package_of_this_environment_needs_no_other(tmp_path):
    here = [each for each in PREDICTORS.values() if each.is_here]
    assert {each.key for each in here} == {"mem_tracker", "fsdp_mem_tracker"}
    assert all(environments.python_of(tmp_path, each) == Path(sys.executable) for each in here)
    assert all(environments.install_bytes(tmp_path, each) == 0 for each in here)
    assert list(tmp_path.iterdir()) == []


def test_vram_check_is_asked_with_frozen_weights(monkeypatch):
    def analyze(model, *, batch_size, dtype, optimizer, seq_len):
        counts = [
            sum(each.numel() for each in model.parameters() if each.requires_grad is kind) for kind in (True, False)
        ]
        assert (batch_size, dtype, optimizer, seq_len) == (2, "bf16", "adamw", 50)
        frozen = {"frozen_bytes": 2 * counts[1]} if counts[1] else None
        return {"estimate": SimpleNamespace(total_bytes=counts[0]), "frozen": frozen}

    monkeypatch.setitem(sys.modules, "vram_check", SimpleNamespace(analyze=analyze))
    # Rank 8: per layer, inputs and outputs of q and o are 196 each, of k and v 148, and of each of the MLP 400.
    adapted = 8 * 2 * (2 * 196 + 2 * 148 + 3 * 400)
    assert vram_check.answer(built()) == {"allocated": BUILT}
    assert vram_check.answer(built(tuning="lora")) == {"allocated": adapted + 2 * BUILT}


def tracked(**job):
    return mem_tracker.answer(built(per_device_train_batch_size=1, **job))["allocated"]


def test_mem_tracker_counts_a_step_that_follows_another():
    # Weights, gradients, two moments and foreach's square roots, in 2 bytes each; the rest are counters and the row.
    assert 0 <= tracked(max_length=8) - 10 * BUILT < 1024
    # Before a step that accumulates: weights, earlier gradients, moments; of the head its gradient in float32 and then
    # in bfloat16, and trl's tile of 7 tokens and 32,768 logits, in bfloat16.
    before = 8 * BUILT + (4 + 2) * 100_000 + 7 * 32_768 * 2
    assert 0 <= tracked(max_length=8, gradient_accumulation_steps=2) - before < 2**14


def test_kernels_of_trls_head_make_no_tensors_on_a_card():
    # As above, without earlier gradients. Operations in place of the kernels make five tensors of 63 x 1,000 x 4 bytes.
    before = 6 * BUILT + (4 + 2) * 100_000 + 63 * 32_768 * 2
    assert 0 <= tracked(max_length=64, optim="adamw_torch_fused") - before < 2**18


def test_fsdp_mem_tracker_shares_weights_and_states():
    job = {"distributed_type": "fsdp", "fsdp_version": 2, "fsdp_offload_params": False, "cp_size": 1, "bf16": True,
           "fsdp_reshard_after_forward": True, "fsdp_activation_checkpointing": False}  # fmt: skip
    two, four = (fsdp_mem_tracker.answer(built(**job, num_processes=count))["allocated"] for count in (2, 4))
    # 4 bytes each of weights and two moments, of which each of four keeps a quarter less of the whole.
    assert two - four == 12 * BUILT // 4


def test_unsloths_file_is_read_without_its_package(tmp_path, monkeypatch):
    made = tmp_path / "studio/backend/utils/hardware/vram_estimation.py"
    made.parent.mkdir(parents=True)
    made.write_text(
        "OPTIMIZER_BYTES_PER_PARAM = {'adamw_torch': 6}\n"
        "def extract_arch_config(config): return config.hidden_size\n"
        "class TrainingVramConfig:\n    def __init__(self, **given): self.__dict__.update(given)\n"
        "class Found:\n    total, cuda_overhead = 100, 30\n"
        "def estimate_training_vram(arch, config):\n"
        "    assert (arch, config.max_seq_length, config.gradient_checkpointing) == (100, 50, 'true')\n"
        "    return Found\n"
    )
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    monkeypatch.delitem(sys.modules, "unsloth_vram_estimation", raising=False)
    assert unsloth.answer(question()) == {"allocated": 70, "device": 100}
    monkeypatch.delitem(sys.modules, "unsloth_vram_estimation")


def test_another_python_answers_by_lines(monkeypatch, capsys):
    def answer(found):
        print("what a package prints")
        found.needs("tuning", "full")
        return {"device": found.parameters}

    import io
    import json

    lines = "".join(json.dumps(asdict(each)) + "\n" for each in (question(), question(tuning="lora")))
    monkeypatch.setattr(asked, "import_module", lambda name: SimpleNamespace(answer=answer))
    monkeypatch.setattr(sys, "argv", ["asked", "made_up"])
    monkeypatch.setattr(sys, "stdin", io.StringIO(lines))
    assert asked.main() == 0
    first, second = (Answer(**json.loads(line)) for line in capsys.readouterr().out.splitlines())
    assert (first.said, first.not_covered) == ({"device": 10**6}, "")
    assert (second.said, second.not_covered) == ({}, "tuning=lora")


def test_answers_are_kept_by_row_and_metric():
    found = [
        Answer(row_id="b", said={"device": 5}, not_covered="", seconds=1.0),
        Answer(row_id="a", said={}, not_covered="tuning=lora", seconds=1.0),
    ]
    assert answers_text(found).splitlines() == [
        "row_id,allocated_bytes,reserved_bytes,device_bytes,not_covered",
        "a,,,,tuning=lora",
        "b,,,5,",
    ]


def test_every_predictor_has_kept_answers_for_every_row():
    named = {row.row_id for row in all_rows()}
    for key in PREDICTORS:
        assert set(kept_answers(key)) == named


def test_the_kept_answers_of_the_estimate_are_those_of_today():
    """After a formula has changed, `make benchmark` asks it anew."""
    kept = kept_answers("estimate")
    for row in all_rows()[::12]:
        try:
            found = own.estimate(row)
        except NotCoveredError:
            found = {}
        assert found == kept[row.row_id], f"{row.row_id}: run `make benchmark`"


def test_formulas_that_run_here_give_the_kept_answers():
    rows = [row for row in all_rows() if row.row_id.startswith(("deepspeed", "fms-mistral"))]
    for key in ("deepspeed", "training_hub"):
        kept = kept_answers(key)
        assert {each.row_id: each.said for each in ask(PREDICTORS[key], rows)} == {
            row.row_id: kept[row.row_id] for row in rows
        }


def test_what_no_key_can_say_is_asked_of_nobody():
    (beyond,) = [row for row in all_rows() if row.row_id == "fms-mistral-7b-v0.1-full-2x4"]
    with pytest.raises(NotCoveredError, match="FSDP 1"):
        question_of(beyond)
    never = replace(PREDICTORS["deepspeed"], from_question=lambda _: pytest.fail("asked"))
    assert isinstance(never, Predictor)
    assert ask(never, [beyond])[0].said == {}
