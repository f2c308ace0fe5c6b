"""Commands of OpenRLHF, by the names of its options since 0.11 and before, and what they leave to DeepSpeed."""

import re

import pytest
from rebuilt import said

from profiler.domain.errors import EXIT_OK
from profiler.solve.main import main as solve

MODEL = "Qwen/Qwen2.5-0.5B"
START = {
    "sft": "deepspeed --num_gpus 2 --module openrlhf.cli.train_sft",
    "dpo": "deepspeed --num_gpus 2 --module openrlhf.cli.train_dpo",
    "rm": "deepspeed --num_gpus 2 --module openrlhf.cli.train_rm",
}
LATER = f"--model.model_name_or_path {MODEL}"
EARLIER = f"--pretrain {MODEL} --bf16 --flash_attn"

OF_BOTH = {
    "tuning": "full",
    "dtype": "bfloat16",
    "bf16": True,
    "optim": "adamw_torch_fused",
    "attn_implementation": "flash_attention_2",
    "gradient_checkpointing": False,
    "distributed_type": "deepspeed",
    "zero_stage": 2,
    "offload_optimizer_device": "none",
    "num_processes": 2,
    "lengths": "ragged",
    "use_liger_kernel": False,
}
DEFAULTS = {
    "sft": {
        "recipe": "sft",
        "per_device_train_batch_size": 8,
        "gradient_accumulation_steps": 8,
        "max_length": 2048,
        "logprobs": "nll_kept",
    },
    "dpo": {
        "recipe": "dpo",
        "per_device_train_batch_size": 8,
        "gradient_accumulation_steps": 8,
        "max_length": 512,
        "beta": 0.1,
        "logprobs": "pairs_widened",
    },
    "rm": {
        "recipe": "reward",
        "per_device_train_batch_size": 1,
        "gradient_accumulation_steps": 64,
        "max_length": 512,
        "logprobs": "fused",
    },
}
"""`train_sft.py`, `train_dpo.py` and `train_rm.py` of 0.5.2 to 0.11.2: 128 rows or pairs per step."""


def answered(folder, text, *words):
    (folder / "run.sh").write_text(text)
    return said(f"config={folder / 'run.sh'}", *words)


@pytest.mark.parametrize("options", [LATER, EARLIER], ids=["later", "earlier"])
@pytest.mark.parametrize("trainer", START)
def test_what_a_command_leaves_open_has_its_default(tmp_path, trainer, options):
    found = answered(tmp_path, f"{START[trainer]} {options}")
    expected = {**OF_BOTH, **DEFAULTS[trainer]}
    assert found.trial is not None, found.errors
    assert {key: found.trial[key] for key in expected} == expected


NAMES = [
    ("data.max_len 300", "max_len 300", {"max_length": 300}),
    ("train.micro_batch_size 4", "micro_train_batch_size 4", {"per_device_train_batch_size": 4}),
    ("train.batch_size 32", "train_batch_size 32", {"gradient_accumulation_steps": 2}),
    ("train.batch_size 8", "train_batch_size 8", {"gradient_accumulation_steps": 1}),
    ("ds.zero_stage 3", "zero_stage 3", {"zero_stage": 3}),
    ("ds.adam_offload", "adam_offload", {"offload_optimizer_device": "cpu"}),
    ("ds.param_dtype bf16", "param_dtype bf16", {"dtype": "bfloat16"}),
    ("ds.packing_samples", "packing_samples", {"lengths": "forced", "attn_implementation": "flash_attention_2"}),
    ("model.gradient_checkpointing_enable", "gradient_checkpointing", {"gradient_checkpointing": True}),
    ("ds.lora.rank 4", "lora_rank 4", {"tuning": "lora", "lora_rank": 4, "lora_alpha": 16, "lora_dropout": 0.0}),
    ("ds.lora.rank 4 --ds.lora.alpha 8", "lora_rank 4 --lora_alpha 8", {"lora_alpha": 8}),
    ("ds.lora.rank 4 --ds.lora.dropout 0.1", "lora_rank 4 --lora_dropout 0.1", {"lora_dropout": 0.1}),
    (
        "ds.lora.rank 4 --ds.lora.target_modules q_proj v_proj",
        "lora_rank 4 --target_modules q_proj v_proj",
        {"lora_target_modules": ["q_proj", "v_proj"]},
    ),
    ("ds.grad_accum_dtype bf16", "grad_accum_dtype bf16", {"dtype": "bfloat16"}),
    ("model.aux_loss_coef 0", "aux_loss_coef 0", {"recipe": "sft"}),
]
"""An option by both names, and what it says."""


@pytest.mark.parametrize(("later", "earlier", "trial"), NAMES)
def test_an_option_is_read_by_both_names(tmp_path, later, earlier, trial):
    for options in (f"{LATER} --{later}", f"{EARLIER} --{earlier}"):
        found = answered(tmp_path, f"{START['sft']} {options}")
        assert found.trial is not None, found.errors
        assert {key: found.trial[key] for key in trial} == trial


@pytest.mark.parametrize(
    ("options", "attention"),
    [
        (f"{LATER} --ds.attn_implementation eager", "eager"),
        (f"{LATER} --ds.attn_implementation sdpa --ds.packing_samples", "flash_attention_2"),
        (f"{LATER} --ds.attn_implementation flash_attention_3", "flash_attention_2"),
        (f"--pretrain {MODEL} --bf16 --attn_implementation sdpa", "sdpa"),
        (f"--pretrain {MODEL} --bf16 --packing_samples", "flash_attention_2"),
    ],
)
def test_packed_rows_have_the_attention_of_flash_attn(tmp_path, options, attention):
    found = answered(tmp_path, f"{START['sft']} {options}")
    assert found.trial is not None, found.errors
    assert found.trial["attn_implementation"] == attention


REFUSED = [
    (f"{LATER} --ds.ring_attn_size 2", "ds.ring_attn_size=2: of"),
    (f"{EARLIER} --ring_attn_size 2", "ring_attn_size=2: of"),
    (f"{LATER} --ds.tensor_parallel_size 2", "ds.tensor_parallel_size=2: of"),
    (f"{EARLIER} --ds_tensor_parallel_size 2", "ds_tensor_parallel_size=2: of"),
    (f"{LATER} --ds.deepcompile", "ds.deepcompile=true: of"),
    (f"{LATER} --ds.use_liger_kernel", "ds.use_liger_kernel=true: of"),
    (f"{LATER} --ds.overlap_comm", "ds.overlap_comm=true: of"),
    (f"{LATER} --ds.zpg 8", "ds.zpg=8: of"),
    (f"{LATER} --ds.grad_accum_dtype fp32", "ds.grad_accum_dtype=fp32: of"),
    (f"{LATER} --ds.experts_implementation grouped_mm", "ds.experts_implementation=grouped_mm: of"),
    (f"{LATER} --ds.lora.rank 8 --ds.load_in_4bit", "ds.load_in_4bit=true: of"),
    (f"{LATER} --train.full_determinism_enable", "train.full_determinism_enable=true: of"),
    (f"{LATER} --optim muon", "optim=muon: of"),
    (f"{LATER} --model.aux_loss_coef 0.01", "model.aux_loss_coef=0.01: of"),
    (f"{LATER} --ds.param_dtype fp16", "dtype=fp16: has no formula here; only bf16"),
    (f"--pretrain {MODEL} --flash_attn", "bf16=null: is absent, and then OpenRLHF trains in float32 before 0.9.3"),
    (f"--pretrain {MODEL} --bf16", "attn_implementation=null: is absent, and then OpenRLHF has eager attention before"),
    ("--pretrain Qwen/Qwen3-30B-A3B --bf16 --flash_attn", "has experts, by its name"),
    ("--pretrain Qwen/Qwen2.5-VL-3B-Instruct --bf16 --flash_attn", "sees images or hears"),
    (f"{EARLIER} --doc_max_length 256", "is doc_max_length in run.sh, and trl has no key of that name"),
]


@pytest.mark.parametrize(("options", "problem"), REFUSED)
def test_what_has_no_formula_is_refused_by_name(tmp_path, options, problem):
    found = answered(tmp_path, f"{START['sft']} {options}")
    assert found.trial is None
    assert problem in " ".join(found.errors)


@pytest.mark.parametrize(
    ("later", "earlier", "trial"),
    [
        ("model.beta 0.3", "beta 0.3", {"beta": 0.3}),
        (f"ref.model_name_or_path {MODEL}", f"ref_pretrain {MODEL}", {"beta": 0.1}),
        ("model.ipo_enable --model.label_smoothing 0.1", "ipo --label_smoothing 0.1", {"logprobs": "pairs_widened"}),
        ("model.nll_loss_coef 0.2", "nll_loss_coef 0.2", {"logprobs": "pairs_widened"}),
        ("ref.offload", "ref_offload", {"zero_stage": 2, "offload_param_device": "none"}),
        ("ds.lora.rank 4 --ds.zero_stage 3", "lora_rank 4 --zero_stage 3", {"tuning": "lora", "zero_stage": 3}),
    ],
)
def test_an_option_of_dpo_is_read_by_both_names(tmp_path, later, earlier, trial):
    for options in (f"{LATER} --{later}", f"{EARLIER} --{earlier}"):
        found = answered(tmp_path, f"{START['dpo']} {options}")
        assert found.trial is not None, found.errors
        assert {key: found.trial[key] for key in trial} == trial
        assert "Not counted" not in found.notes
        assert ("moves nothing to the host below zero_stage=3" in found.notes) == ("offload" in later)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (f"{LATER} --ref.offload --ds.zero_stage 3", "ref_offload=true: moves shards of the reference to the host"),
        (f"{EARLIER} --ref_offload --zero_stage 3", "ref_offload=true: moves shards of the reference to the host"),
        (f"{LATER} --ref.model_name_or_path a/b", f"ref_pretrain=a/b: is another model than {MODEL}"),
        (f"{EARLIER} --ref_pretrain a/b", f"ref_pretrain=a/b: is another model than {MODEL}"),
        (f"{LATER} --model.beta 0", "with recipe=dpo the loss does not depend on the model"),
        (f"{LATER} --ds.adam_offload", "offload_optimizer_device=cpu: has no closed-form estimate together with"),
        (f"{EARLIER} --kl_loss_coef 0.001", "is kl_loss_coef in run.sh, and trl has no key of that name"),
    ],
)
def test_what_of_dpo_has_no_formula_is_refused_by_name(tmp_path, options, problem):
    found = answered(tmp_path, f"{START['dpo']} {options}")
    assert found.trial is None
    assert problem in " ".join(found.errors)
    # A sweep runs trl's trainers alone.
    assert "A sweep" not in " ".join(found.errors)


@pytest.mark.parametrize("word", ["bf16=true", "attn_implementation=eager"])
def test_a_word_settles_what_the_version_would_decide(tmp_path, word):
    key, _, value = word.partition("=")
    rest = EARLIER.replace("--bf16", "" if key == "bf16" else "--bf16")
    rest = rest.replace("--flash_attn", "" if key != "bf16" else "--flash_attn")
    found = answered(tmp_path, f"{START['sft']} {rest}", word)
    assert found.trial is not None, found.errors
    assert str(found.trial[key]).lower() == value


@pytest.mark.parametrize(
    ("command", "trainer"),
    [
        ("deepspeed --module openrlhf.cli.train_kto --pretrain a/b", "train_kto"),
        ("deepspeed --module openrlhf.cli.train_prm --pretrain a/b", "train_prm"),
        ("python -m openrlhf.cli.train_ppo_ray --pretrain a/b --vllm_num_engines 4", "train_ppo_ray"),
        (
            "ray job submit --address=http://a:1 -- python3 -u -m openrlhf.cli.train_ppo_ray --actor.num_nodes 1",
            "train_ppo_ray",
        ),
    ],
)
def test_other_trainers_are_refused_with_what_runs_them(tmp_path, command, trainer):
    found = answered(tmp_path, command)
    assert found.trial is None
    (line,) = (each for each in found.errors if each.startswith("openrlhf.cli="))
    assert line.startswith(
        f"openrlhf.cli={trainer}: is a trainer of OpenRLHF 0.7 to 0.11 that is not read, because it "
    )
    assert "python -m profiler.run gpus=1xCARD runs the command itself on an emulated card" in line
    assert not [each for each in found.errors if "trl has no key" in each or "trl has no such keys" in each]


@pytest.mark.parametrize(
    ("start", "processes", "passes"),
    [
        ("deepspeed --include localhost:4,5,6,7 --module", 4, 4),
        ("deepspeed --num_gpus 4 --num_nodes 2 --module", 8, 2),
        ("CUDA_VISIBLE_DEVICES=0,1,2,3 deepspeed --module", 4, 4),
        ("torchrun --nproc_per_node 8 -m", 8, 2),
        ("deepspeed --module", 2, 8),
    ],
)
def test_the_launcher_says_how_many_gpus_share_a_step(tmp_path, start, processes, passes):
    found = answered(tmp_path, f"{start} openrlhf.cli.train_sft {LATER}")
    assert found.trial is not None, found.errors
    assert (found.trial["num_processes"], found.trial["gradient_accumulation_steps"]) == (processes, passes)
    assert ("num_processes=2 (the fewest over which ZeRO shards" in found.notes) == (start == "deepspeed --module")


def test_a_command_in_a_here_document_is_read(tmp_path):
    text = f"read -r -d '' commands <<EOF\nopenrlhf.cli.train_sft \\\n  {LATER} \\\n  --ds.zero_stage 3 \\\n"
    text += "  --logger.wandb.run_name run-$(date +%m%d)\nEOF\n    # --ds.adam_offload\n"
    text += 'if [[ ${1} != "slurm" ]]; then\n    deepspeed --num_gpus 4 --module $commands\nfi\n'
    found = answered(tmp_path, text)
    assert found.trial is not None, found.errors
    assert (found.trial["zero_stage"], found.trial["num_processes"]) == (3, 4)
    assert found.trial["offload_optimizer_device"] == "none"


def test_deepspeed_is_counted_on_one_gpu_too(tmp_path):
    options = f"{LATER} --train.batch_size 8 --train.micro_batch_size 2 --data.max_len 512"
    one, two = (
        answered(tmp_path, f"deepspeed --num_gpus {gpus} --module openrlhf.cli.train_sft {options}") for gpus in (1, 2)
    )
    assert (one.trial["distributed_type"], one.trial["num_processes"]) == ("deepspeed", 1)
    assert "Not counted" not in one.notes
    assert (two.trial["distributed_type"], two.trial["num_processes"]) == ("deepspeed", 2)
    pairs = answered(tmp_path, f"deepspeed --num_gpus 1 --module openrlhf.cli.train_dpo {LATER}")
    assert (pairs.trial["distributed_type"], pairs.trial["num_processes"]) == ("deepspeed", 1)
    reward = answered(tmp_path, f"deepspeed --num_gpus 1 --module openrlhf.cli.train_rm {LATER}")
    assert (reward.trial["distributed_type"], reward.trial["num_processes"]) == ("deepspeed", 1)


def test_a_search_counts_deepspeed(tmp_path, capsys):
    options = f"{LATER} --train.micro_batch_size 2 --data.max_len 512 --model.gradient_checkpointing_enable"
    (tmp_path / "run.sh").write_text(f"{START['sft']} {options}")
    words = [f"config={tmp_path / 'run.sh'}", "gpu=rtx-4090-24gb", "confirm=false"]
    assert solve(["per_device_train_batch_size", *words]) == EXIT_OK
    found = capsys.readouterr().out
    assert "ZeRO-2 on 2 GPUs" in found
    # 10 B per value of 512 x 151,936 logits are 0.72 GiB per row.
    assert 10 < int(re.search(r"at most (\d+)", found)[1]) < 30


def test_a_release_before_the_loss_is_named(tmp_path):
    earlier, later = (answered(tmp_path, f"{START['sft']} {options}").notes for options in (EARLIER, LATER))
    assert "stay until the next; before 0.7.0 the loss keeps more of them" in earlier
    assert "before 0.7.0" not in later
    pairs = answered(tmp_path, f"{START['dpo']} {EARLIER}").notes
    assert "logits are float32, and stay until backward; before 0.7.0 the loss keeps more of them" in pairs
