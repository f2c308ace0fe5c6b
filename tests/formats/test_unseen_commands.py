"""Commands and recipes of public repositories that were answered wrongly when they were read for the first time."""

import pytest
from rebuilt import facts_of, read

from profiler.domain.errors import EXIT_USAGE
from profiler.estimate.main import main

ROLLOUT, ACTOR = "actor_rollout_ref.rollout", "actor_rollout_ref.actor"
CHECKPOINTING = "model.enable_gradient_checkpointing"

PAIRS = """model_name_or_path: Qwen/Qwen2.5-0.5B
beta: 0.1
max_completion_length: 128
per_device_train_batch_size: 2
"""


def refusal(folder, name, text, capsys, *words):
    assert main(list(read(folder, name, text, *words))) == EXIT_USAGE
    return capsys.readouterr().err


@pytest.mark.parametrize(
    "key",
    [
        "precompute_ref_log_probs: false",
        "label_smoothing: 0.0",
        "reference_free: false",
        "label_pad_token_id: -100",
        "max_length: 512",
        "loss_type: sigmoid",
        "loss_type: [sigmoid, ipo]",
    ],
)
def test_completions_of_pairs_are_no_rollouts(tmp_path, capsys, key):
    """Of anonymsubmission-arr/HiCUPID: 8B by DPO was answered as GRPO, 227 GiB in the rollout."""
    said = refusal(tmp_path, "train.yaml", f"{PAIRS}{key}\n", capsys)
    assert "is a key of trl 0.14 to 0.28, whose DPOTrainer is another one" in said


@pytest.mark.parametrize(
    ("name", "more", "recipe"),
    [
        ("train.yaml", "", "grpo"),
        ("train.yaml", "loss_type: dr_grpo\n", "grpo"),
        ("train.yaml", "max_length: 512\nnum_generations: 2\n", "grpo"),
        ("train.yaml", "label_smoothing: 0.0\nuse_vllm: false\n", "grpo"),
        ("grpo.yaml", "max_length: 512\n", "grpo"),
        ("dpo.yaml", "max_length: 512\n", "dpo"),
    ],
)
def test_completions_are_rollouts_where_no_key_says_pairs(tmp_path, name, more, recipe):
    words = read(tmp_path, name, f"{PAIRS}{more}", "trl=1.16")
    assert facts_of(words)["trial"]["recipe"] == recipe


@pytest.mark.parametrize("key", ["cpo_alpha: 0.0", "simpo_gamma: 0.5"])
def test_a_trainer_of_pairs_without_a_recipe_is_named(tmp_path, capsys, key):
    assert "is a key of trl's CPOTrainer" in refusal(tmp_path, "train.yaml", f"{PAIRS}{key}\n", capsys)


@pytest.mark.parametrize("key", ["reference_free: true", "rpo_alpha: 1.0"])
def test_a_key_of_an_earlier_trainer_of_pairs_is_refused(tmp_path, capsys, key):
    said = refusal(tmp_path, "train.yaml", f"{PAIRS}{key}\n", capsys, "trl=1.16")
    assert "is a key of trl's DPOTrainer up to 0.28" in said


@pytest.mark.parametrize(
    ("command", "word"),
    [
        ("axolotl train $CONFIG", "$CONFIG"),
        ("python -m accelerate.commands.launch -m axolotl.cli.train $CONFIG", "$CONFIG"),
        ("llamafactory-cli train ${1}", "${1}"),
        ("swift sft $ARGS --max_length 512", "$ARGS"),
        ("trl sft $ARGS --max_length 512", "$ARGS"),
        ("deepspeed --module openrlhf.cli.train_sft $ARGS", "$ARGS"),
    ],
)
def test_a_command_whose_recipe_is_not_stated_is_refused(tmp_path, capsys, command, word):
    """Of heros-os/linux-kernel-ai-data: QLoRA was answered as full training of rows of 512 tokens, after `model=`."""
    said = refusal(tmp_path, "train.sh", f"{command}\n", capsys, "model=qwen2.5-7b")
    assert f"config={word}: is what " in said
    assert "takes its model from, and train.sh does not state it" in said


@pytest.mark.parametrize("command", ["swift sft --model", "trl sft --model_name_or_path"])
def test_further_arguments_that_are_not_stated_stay_named(tmp_path, capsys, command):
    words = read(tmp_path, "train.sh", f"{command} Qwen/Qwen2.5-0.5B --max_length 512 $ARGS\n", "gpu=h100-80gb")
    assert main(list(words)) == 0
    assert "what train.sh passes on as $ARGS" in " ".join(capsys.readouterr().out.split())


# verl

EARLY = f"""python3 -m verl.trainer.main_ppo data.max_prompt_length=256 data.max_response_length=256 \\
    actor_rollout_ref.model.path=Qwen/Qwen2.5-0.5B {ACTOR}.ppo_micro_batch_size=2 \\
    {ROLLOUT}.log_prob_micro_batch_size=2 actor_rollout_ref.ref.log_prob_micro_batch_size=2 \\
    critic.ppo_micro_batch_size=2 trainer.n_gpus_per_node=2 MORE
"""


def early(folder, more, *words):
    return read(folder, "run.sh", EARLY.replace("MORE", more), "gpu=h100-80gb", *words)


@pytest.mark.parametrize(
    ("more", "asked"),
    [
        ("+trainer.val_before_train=False", ["actor_rollout_ref", "critic"]),
        (f"{ACTOR}.fsdp_config.grad_offload=False", ["actor_rollout_ref", "critic"]),
        ("+trainer.val_before_train=False algorithm.adv_estimator=grpo", ["actor_rollout_ref"]),
        (f"+trainer.val_before_train=False critic.{CHECKPOINTING}=True", ["actor_rollout_ref"]),
        (f"+trainer.val_before_train=False {ACTOR}.ppo_micro_batch_size_per_gpu=1", ["critic"]),
    ],
)
def test_a_job_of_the_first_verl_is_asked_for_checkpointing(tmp_path, capsys, more, asked):
    """Its default was false in 0.1: 3B by PPO on two GPUs was answered 66 GiB, which fits, and needs 84."""
    assert main(list(early(tmp_path, more))) == EXIT_USAGE
    said = capsys.readouterr().err
    assert [part for part in ("actor_rollout_ref", "critic") if f"{part}.{CHECKPOINTING}=null" in said] == asked


@pytest.mark.parametrize(
    ("more", "is_early"),
    [
        ("+trainer.val_before_train=False", True),
        ("++trainer.val_before_train=False", False),
        ("trainer.val_before_train=False", False),
        ("", False),
    ],
)
def test_a_key_that_is_new_says_the_age_of_verl(tmp_path, more, is_early):
    """Of TianHongZXY/rl-reasoning: without a reference and an entropy, and packed, where verl 0.2 pads rows."""
    stated = [f"{part}.{CHECKPOINTING}=true" for part in ("actor_rollout_ref", "critic")]
    found = facts_of(early(tmp_path, f"{more} algorithm.adv_estimator=grpo", *stated))
    keys = (f"{ACTOR}.entropy_coeff=0.001", "algorithm.use_kl_in_reward=true", "model.use_remove_padding=false")
    notes = " ".join(found["notes"])
    assert [f"{key} (verl's default before 0.3" in notes for key in keys] == [is_early] * 3
    words = early(tmp_path, f"{more} algorithm.adv_estimator=grpo", *stated, "algorithm.use_kl_in_reward=false")
    assert "use_kl_in_reward" not in " ".join(facts_of(words)["notes"])


@pytest.mark.parametrize(
    ("key", "is_open"),
    [
        ("data.max_response_length", True),
        (f"{ROLLOUT}.n", True),
        ("trainer.n_gpus_per_node", True),
        (f"{ROLLOUT}.temperature", False),
        ("trainer.experiment_name", False),
    ],
)
def test_a_size_that_is_not_stated_leaves_the_verdict_open(tmp_path, key, is_open):
    """Of kim-yoonju/SC: 14 sizes that Python reads from a file were verl's defaults, and the job fitted."""
    more = f"algorithm.adv_estimator=grpo {key}=$(python3 read.py)"
    found = facts_of(early(tmp_path, more))
    assert (found["fit"] == "not decided") is is_open
    assert not is_open or any(f"verl's default of {key} (run.sh" in note for note in found["notes"])
    assert facts_of(early(tmp_path, more, f"{key}=2"))["fit"] == "fits"


def test_a_name_that_a_branch_decides_is_not_asked_for(tmp_path):
    """Of SophiaPx/survive-or-collapse: the identity of a run in a log, which continues an earlier one."""
    call = EARLY.replace("MORE", "algorithm.adv_estimator=grpo trainer.run_id=$ID")
    text = f"ID=7\nif [ $(hostname) = big ]; then ID=8; fi\n{call}"
    words = read(tmp_path, "run.sh", text, "gpu=h100-80gb")
    assert facts_of(words)["n_gpus"] == 2


def test_calls_of_groups_alone_are_calls_of_verl(tmp_path, capsys):
    text = "python -m verl.trainer.main_ppo exps=a\npython -m verl.trainer.main_ppo exps=a base_model=b\n"
    assert "calls verl's trainer 2 times, and one is read" in refusal(tmp_path, "run.sh", text, capsys)


@pytest.mark.parametrize(
    ("more", "is_open"),
    [
        ("", False),
        (f"+{ACTOR}.fsdp_config.model_dtype=bf16", True),
        (f"++{ACTOR}.fsdp_config.model_dtype=bf16", False),
        ("+data.own=1", False),
        (f"+{ACTOR}.fsdp_config.model_dtype=bf16 actor_rollout_ref.model.use_remove_padding=True", False),
    ],
)
def test_a_script_of_an_earlier_verl_may_pad_its_rows(tmp_path, more, is_open):
    """Its default is true from 0.7 on: 7B whose padded rows are scored in 84 GiB was answered 47, which fits."""
    found = facts_of(early(tmp_path, f"algorithm.adv_estimator=grpo {more}"))
    assert (found["fit"] == "not decided") is is_open
    names = any("use_remove_padding" in note for note in found["notes"])
    assert names is ("use_remove_padding" not in more)


@pytest.mark.parametrize(("more", "fit"), [("+trainer.val_before_train=False", "not decided"), ("", "not possible")])
def test_the_first_verl_takes_mini_batches_that_do_not_divide(tmp_path, more, fit):
    """Of TianHongZXY/rl-reasoning: 275 rows in micro-batches of two ran there, and were said to be refused."""
    rows = f"{ACTOR}.ppo_micro_batch_size_per_gpu=2 {ACTOR}.ppo_micro_batch_size=null {ACTOR}.ppo_mini_batch_size=6"
    stated = f"{more} algorithm.adv_estimator=grpo data.train_batch_size=6 {rows} {ROLLOUT}.n=1"
    assert facts_of(early(tmp_path, stated))["fit"] == fit


@pytest.mark.parametrize(("length", "fit"), [(256, "not decided"), (200, "not decided"), (512, "fits")])
def test_prompts_that_fill_the_rows_of_the_engine_are_no_refusal(tmp_path, length, fit):
    """Of j1mk1m/Kernel-Coder and agarwalishika/AcquisitionSynthesis: verl refuses such a prompt, and no job."""
    stated = f"algorithm.adv_estimator=grpo {ROLLOUT}.max_model_len={length}"
    assert facts_of(early(tmp_path, stated))["fit"] == fit


def test_a_trainer_that_only_begins_as_verls_is_named(tmp_path):
    """Of SimKO's copy of verl: what keeps the critic on GPUs of its own had verl's own answer; others were silent."""
    call = EARLY.replace("verl.trainer.main_ppo", "mine.main_ppo").replace("MORE", "algorithm.adv_estimator=grpo")
    found = facts_of(read(tmp_path, "run.sh", call, "gpu=h100-80gb"))
    assert found["fit"] == "not decided"
    assert "what mine.main_ppo makes otherwise than verl's main_ppo" in " ".join(found["notes"])


@pytest.mark.parametrize(("key", "is_asked"), [("reward_model.reward_kwargs.max_resp_len", False), ("data.own", True)])
def test_what_rewards_are_made_of_is_not_asked_for(tmp_path, capsys, key, is_asked):
    """Of 96kevinli29/PPO_critic: five keys of a reward by length, which a branch decides."""
    call = EARLY.replace("MORE", "algorithm.adv_estimator=grpo $MORE")
    words = read(tmp_path, "run.sh", f'if [[ $A =~ ^[0-9]+$ ]]; then MORE="{key}=7"; fi\n{call}', "gpu=h100-80gb")
    assert main(list(words)) == (EXIT_USAGE if is_asked else 0)
    assert (f"give {key}= as well" in capsys.readouterr().err) is is_asked


# LLaMA-Factory and ms-swift

SFT = (
    "llamafactory-cli train --stage sft --do_train true --finetuning_type full --model_name_or_path Qwen/Qwen2.5-0.5B "
    "--bf16 true --cutoff_len 512"
)


@pytest.mark.parametrize(("word", "stage"), [("${CONFIGS[0]}", 2), ("${CONFIGS[$i]}", 2), ("$OTHER", 3)])
def test_sharding_is_read_from_an_array_or_given(tmp_path, capsys, word, stage):
    """Of LHL3341/Caco: the key of DeepSpeed's file was asked for, and no word could state it."""
    text = f"CONFIGS=(examples/deepspeed/ds_z2_config.json)\ni=0\n{SFT} --deepspeed {word}\n"
    words = read(tmp_path, "train.sh", text, "gpu=h100-80gb", "num_processes=2")
    if word == "$OTHER":
        assert "Give zero_stage= as well" in refusal(tmp_path, "train.sh", text, capsys, "num_processes=2")
        words = (*words, "zero_stage=3")
    assert facts_of(words)["trial"]["zero_stage"] == stage


@pytest.mark.parametrize(
    "folder",
    [
        '$(cd "$(dirname "$0")/.." && pwd)',
        '$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)',
        '$(dirname "$(dirname "$(readlink -f "$0")")")',
        "${ROOT:?}",
        "$ROOT",
    ],
)
def test_a_file_of_the_folder_of_the_script_is_found(tmp_path, folder):
    """Of JethroJames/FFR: the file of DeepSpeed lay there, and was asked for."""
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs" / "zero.json").write_text('{"zero_optimization": {"stage": 3}}')
    text = f"HERE={folder}\n{SFT} --deepspeed $HERE/configs/zero.json\n"
    assert facts_of(read(tmp_path, "train.sh", text, "num_processes=2"))["trial"]["zero_stage"] == 3


def test_a_file_that_does_not_say_that_it_trains_names_the_key(tmp_path, capsys):
    text = "stage: sft\nfinetuning_type: lora\nmodel_name_or_path: Qwen/Qwen2.5-0.5B\ncutoff_len: 512\n"
    assert "Write do_train: true into it" in refusal(tmp_path, "sft.yaml", text, capsys)


@pytest.mark.parametrize(
    ("length", "rows", "made", "prompt"),
    [(4096, 4096, 1024, 3072), (8192, 4096, 1024, 3072), (2048, 4096, 1024, 2048), (4096, 4096, None, 3584)],
)
def test_prompts_of_swift_leave_rows_for_completions(tmp_path, length, rows, made, prompt):
    """Of arkiven4's copy of ms-swift: rows that `max_length` fills were "nothing for completions"."""
    completion = "" if made is None else f"--max_completion_length {made} "
    text = (
        f"swift rlhf --rlhf_type grpo --model Qwen/Qwen2.5-0.5B --tuner_type lora --torch_dtype bfloat16 {completion}"
        f"--use_vllm true --vllm_mode colocate --max_length {length} --vllm_max_model_len {rows}\n"
    )
    assert facts_of(read(tmp_path, "train.sh", text))["trial"]["max_prompt_length"] == prompt


@pytest.mark.parametrize(
    "words", ["--dataset_name /data/llava/a.json", "--run_name fastchat", "--output_dir safe_rlhf/a"]
)
def test_a_path_that_looks_like_a_package_is_no_program(tmp_path, words):
    """Of tnn1t1s/olmo-instruct, whose program counted as trl's: its name, and not any path, is what is refused."""
    text = f"trl sft --model_name_or_path Qwen/Qwen2.5-0.5B --max_length 512 {words}\n"
    assert facts_of(read(tmp_path, "train.sh", text, "trl=1.16"))["trial"]["recipe"] == "sft"


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("train.sh", f"{SFT} --deepspeed examples/deepspeed/ds_z0_config.json\n"),
        ("train.sh", "swift sft --model Qwen/Qwen2.5-0.5B --tuner_type full --max_length 512 --deepspeed zero0\n"),
        ("sft.yaml", "model_name_or_path: Qwen/Qwen2.5-0.5B\nmax_length: 512\ndeepspeed: {bf16: {enabled: auto}}\n"),
        (
            "sft.yaml",
            "base_model: Qwen/Qwen2.5-0.5B\nsequence_len: 512\nmicro_batch_size: 1\nbf16: true\nflash_attention: true\n"
            "gradient_accumulation_steps: 1\noptimizer: adamw_torch\ndeepspeed: {zero_optimization: {stage: 0}}\n",
        ),
    ],
)
def test_deepspeed_that_shards_nothing_is_counted(tmp_path, name, text, count):
    """Of LHL3341/Caco's copy of LLaMA-Factory: stage 0 was DDP of bfloat16 weights, 4 B of 16 per parameter short."""
    trial = facts_of(read(tmp_path, name, text, f"num_processes={count}", "trl=1.16"))["trial"]
    assert (trial["distributed_type"], trial["zero_stage"]) == ("deepspeed", 0)


def test_deepspeed_without_a_formula_leaves_the_verdict_open(tmp_path, capsys):
    text = f"{SFT} --deepspeed ds_z0_config.json --optim lomo\n"
    assert main(list(read(tmp_path, "train.sh", text, "gpu=h100-80gb", "num_processes=1", "optim=adafactor"))) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "what DeepSpeed changes (it shards nothing, and keeps float32 copies" in said


def test_keys_that_settle_other_faults_make_no_recipe(tmp_path, capsys):
    """Of KyrieXDL/zero-simple-reproduction: its own PPO was answered as GRPO, once two other keys were given."""
    (tmp_path / "ppo.py").write_text(
        "from ppo_trainer import PPOTrainer\nfrom transformers import HfArgumentParser, TrainingArguments\n"
        "from trl import ModelConfig, get_peft_config\n"
        "class PPOConfig(TrainingArguments):\n    kl_coef: float = 0.05\n"
        "parser = HfArgumentParser((PPOConfig, ModelConfig))\n"
        "training_args, model_args = parser.parse_args_into_dataclasses()\n"
        "model_args.lora_target_modules = model_args.lora_target_modules.split(',')\n"
        "PPOTrainer(args=training_args, peft_config=get_peft_config(model_args)).train()\n"
    )
    line = "python ppo.py --model_name_or_path Qwen/Qwen2.5-0.5B --lora_target_modules q_proj --learning_rate 1e-6\n"
    assert "calls none of GRPOConfig" in refusal(tmp_path, "run.sh", line, capsys, "lora_target_modules=q_proj")


SWIFT = "--model Qwen/Qwen2.5-0.5B --max_length 512 --torch_dtype bfloat16"


@pytest.mark.parametrize(
    "program",
    ['"$(which swift)"', "$(command -v swift)", "`which swift`", "$(type -P swift)", "/opt/bin/swift", "swift"],
)
@pytest.mark.parametrize(("starter", "count"), [("torchrun --nproc_per_node=2", 2), ("python", 1)])
def test_a_program_is_known_by_its_path(tmp_path, program, starter, count):
    """Of mervekarakas/grpo_bt_rm: adapters by ms-swift were full training by trl, 143 GiB in place of 35."""
    text = f"cmd=({program} sft {SWIFT})\n{starter} ${{cmd[@]}}\n"
    trial = facts_of(read(tmp_path, "train.sh", text))["trial"]
    assert (trial["tuning"], trial["lora_rank"], trial["num_processes"]) == ("lora", 8, count)


@pytest.mark.parametrize("made", ["", "    args = RewardConfig(output_dir='out')\n"])
def test_arguments_of_trl_in_another_trainer_are_refused(tmp_path, capsys, made):
    """Of sahandrez/unpaired_rlhf: single answers in transformers' trainer were pairs, 64 rows for 32."""
    (tmp_path / "score.py").write_text(
        "from transformers import AutoModelForSequenceClassification, HfArgumentParser, Trainer\n"
        "from trl import ModelConfig, RewardConfig\n"
        "if __name__ == '__main__':\n"
        "    args, named = HfArgumentParser((RewardConfig, ModelConfig)).parse_args_into_dataclasses()\n"
        f"{made}"
        "    model = AutoModelForSequenceClassification.from_pretrained(named.model_name_or_path, num_labels=1)\n"
        "    Trainer(model=model, args=args).train()\n"
    )
    line = "python score.py --model_name_or_path Qwen/Qwen2.5-0.5B --max_length 512 --output_dir out\n"
    said = refusal(tmp_path, "run.sh", line, capsys)
    assert "gives RewardConfig to Trainer" in said
    assert "which is no trainer of trl" in said


@pytest.mark.parametrize("loss", ["simpo", "alphapo", "cpo", "orpo"])
def test_a_loss_of_another_trainer_names_it(tmp_path, capsys, loss):
    text = f"model_name_or_path: Qwen/Qwen2.5-0.5B\nmax_length: 512\nbeta: 2.0\nloss_type: {loss}\n"
    said = refusal(tmp_path, "train.yaml", text, capsys)
    assert f"loss_type={loss}: is a trainer of trl that has no recipe here" in said


@pytest.mark.parametrize(
    "inner", ["orpo: {beta: 0.1, max_length: 512}", "loss_type: simpo, max_length: 512, beta: 2.0"]
)
def test_a_trainer_without_a_recipe_in_a_section_is_refused(tmp_path, capsys, inner):
    """Of gustavecortal/eliciting_emotional_reasoning: ORPO in `training` was DPO, with a reference that it lacks."""
    text = f"model: {{name: Qwen/Qwen2.5-0.5B}}\ntraining: {{per_device_train_batch_size: 2, bf16: true, {inner}}}\n"
    said = refusal(tmp_path, "config.yaml", text, capsys, "model=qwen2.5-0.5b", "trl=1.16")
    assert "which has no recipe here" in said


@pytest.mark.parametrize("loss", ["kto", "apo_zero_unpaired"])
@pytest.mark.parametrize(
    "form", ["model: {name: Qwen/Qwen2.5-0.5B}\ntraining: {OWN}\n", "{model: Qwen/Qwen2.5-0.5B, OWN}\n"]
)
def test_a_loss_of_kto_is_no_generation(tmp_path, form, loss):
    """Of o-ankomochi-o/simpo_train_project: `generation_batch_size` of its own made GRPO of KTO."""
    own = f"loss_type: {loss}, generation_batch_size: 2, per_device_train_batch_size: 2, max_length: 512, bf16: true"
    words = read(tmp_path, "config.yaml", form.replace("OWN", own), "model=qwen2.5-0.5b", "trl=1.16")
    assert facts_of(words)["trial"]["recipe"] == "kto"
