"""What of verl has no firm verdict: engines without formulas, jobs that verl refuses, effects that are not counted."""

import json

import pytest

from profiler.domain.errors import EXIT_ANSWER_IS_NO, EXIT_OK, EXIT_USAGE, UsageError
from profiler.estimate.main import answer, main

ACTOR, REF, ROLLOUT, MODEL = (f"actor_rollout_ref.{part}" for part in ("actor", "ref", "rollout", "model"))
GRPO = ("algorithm.adv_estimator=grpo", f"{MODEL}.path=qwen3-8b", "gpu=h100-80gb")
CALL = "python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo actor_rollout_ref.model.path=Qwen/Qwen3-8B "


def found(*words):
    return json.loads(answer([*words, "format=json"]))


def of_script(tmp_path, text, *words):
    path = tmp_path / "run.sh"
    path.write_text(text)
    return found(f"config={path}", "gpu=h100-80gb", *words)


def faults(*words):
    with pytest.raises(UsageError) as error:
        answer(list(words))
    return [fault.sentence() for fault in error.value.faults]


# Engines


@pytest.mark.parametrize("release", ["verl=0.8", "verl=0.9.1"])
def test_megatron_is_read_wherever_it_is_named(tmp_path, release):
    words = (release, *GRPO)
    expected = found("config=verl-megatron", *words)
    assert "megatron" in answer(["config=verl-megatron", *words])
    assert found("config=verl", "model_engine=megatron", *words) == expected
    assert found("model_engine=megatron", *words) == expected

    def phases(text):
        return of_script(tmp_path, text, release)["phases"]

    assert phases(f"{CALL} model_engine=megatron\n") == expected["phases"]
    array = f'EXTRA=(\n  model_engine=megatron\n)\n{CALL} "${{EXTRA[@]}}"\n'
    assert phases(array) == expected["phases"]
    assert phases(f"{CALL} actor@actor_rollout_ref.actor=megatron_actor\n") == expected["phases"]
    (tmp_path / "job.yaml").write_text("defaults: [{model_engine: megatron}, _self_]\nactor_rollout_ref: {}\n")
    assert found(f"config={tmp_path / 'job.yaml'}", *words)["phases"] == expected["phases"]
    assert found("config=verl", *words)["phases"] != expected["phases"]
    assert found("config=verl", "model_engine=dp", *words) == found("config=verl", *words)


@pytest.mark.parametrize("engine", ["veomni", "torchtitan", "mindspeed", "automodel", "megatrom", "'[dp]'"])
def test_an_engine_without_formulas_is_refused(tmp_path, engine):
    path = tmp_path / "run.sh"
    path.write_text(f"{CALL} model_engine={engine}\n")
    (said,) = faults(f"config={path}")
    assert said.startswith("model_engine=") and "has no formulas here" in said
    assert "has no formulas here" in faults("config=verl", f"model_engine={engine}", *GRPO)[0]


@pytest.mark.parametrize("strategy", ["veomni", "torchtitan", "fsdp_turbo", "FSDP"])
def test_a_strategy_that_is_not_known_is_refused(strategy):
    assert "must be one of fsdp, fsdp2, megatron" in faults("config=verl", f"{ACTOR}.strategy={strategy}", *GRPO)[0]


def test_a_strategy_that_contradicts_the_engine_is_refused():
    (said,) = faults("config=verl-megatron", f"{ACTOR}.strategy=fsdp2", *GRPO)
    assert f"{ACTOR}.strategy=fsdp2: is another engine than megatron" in said


def test_a_section_of_another_engine_is_refused(tmp_path):
    path = tmp_path / "run.sh"
    path.write_text(f"{CALL} actor@actor_rollout_ref.actor=mlite_actor\n")
    assert "actor@actor_rollout_ref.actor=mlite_actor" in faults(f"config={path}")[0]


def test_a_configuration_of_its_own_needs_its_file(tmp_path):
    script, job = tmp_path / "run.sh", tmp_path / "mine.yaml"
    script.write_text(f"{CALL} --config-path=conf --config-name=mine\n")
    (said,) = faults(f"config={script}")
    assert "--config-name=mine: is a configuration of its own" in said and "config=FILE" in said
    job.write_text("defaults: [ppo_trainer, _self_]\nactor_rollout_ref: {}\ntrainer: {n_gpus_per_node: 4}\n")
    assert found(f"config={job}", f"config={script}", "gpu=h100-80gb")["n_gpus"] == 4
    job.write_text("defaults: [other_trainer, _self_]\nactor_rollout_ref: {}\n")
    assert "builds on a configuration" in faults(f"config={job}", f"config={script}")[0]


@pytest.mark.parametrize(
    "module",
    ["verl.experimental.one_step_off_policy.main_ppo", "verl.experimental.fully_async_policy.fully_async_main"],
)
def test_trainers_with_own_gpus_for_the_rollout_are_refused(tmp_path, module):
    path = tmp_path / "run.sh"
    path.write_text(CALL.replace("verl.trainer.main_ppo", module) + "\n")
    assert "has parts of the job on different GPUs" in faults(f"config={path}")[0]


# Variables of several branches


def test_a_variable_of_a_case_that_the_script_decides_is_stated(tmp_path):
    text = (
        "DEVICE=${DEVICE:-$(python3 -c 'import torch_npu' 2>/dev/null && echo npu || echo gpu)}\n"
        "length=${LENGTH:-2048}\nmicro=${MICRO:-}\n"
        'case "${DEVICE}" in\n  gpu)\n    micro=${micro:-2}\n    ;;\n  npu)\n    length=32768\n    ;;\nesac\n'
        f"{CALL} data.max_response_length=${{length}} {ACTOR}.ppo_micro_batch_size_per_gpu=$micro\n"
    )
    job = of_script(tmp_path, text)
    assert job["longest_row"] == 512 + 2048
    assert not any("does not state it" in note for note in job["notes"])


def test_a_variable_of_the_machine_is_named_with_its_values(tmp_path):
    path = tmp_path / "run.sh"
    path.write_text(
        "length=2048\nif [ $(hostname) = big ]; then\n  length=8192\nfi\n"
        f"{CALL} data.max_response_length=$length trainer.experiment_name=$length\n"
    )
    (said,) = faults(f"config={path}")
    assert said.startswith("data.max_response_length=$length: is 8192 or 2048 in run.sh, by its branch ([ $(hostname)")
    assert said.endswith("give data.max_response_length= as well.")
    assert found(f"config={path}", "data.max_response_length=1024", "gpu=h100-80gb")["longest_row"] == 512 + 1024


def test_an_engine_that_the_machine_decides_is_refused(tmp_path):
    path = tmp_path / "run.sh"
    path.write_text(f"E=dp\n[ -d /opt/megatron ] && E=megatron\n{CALL} model_engine=$E\n")
    assert "model_engine=$E: is megatron or dp in run.sh" in faults(f"config={path}")[0]


def test_references_of_a_file_are_followed(tmp_path):
    path = tmp_path / "job.yaml"
    path.write_text(
        "own: {length: 4096}\ndata: {max_response_length: '${own.length}', max_prompt_length: '${oc.env:PROMPT}'}\n"
        "actor_rollout_ref: {actor: {strategy: '${oc.select:own.strategy,fsdp}'}}\n"
    )
    job = found(f"config={path}", *GRPO)
    assert job["longest_row"] == 512 + 4096
    assert any(
        "verl's default of data.max_prompt_length (${oc.env:PROMPT} is not read)" in note for note in job["notes"]
    )
    path.write_text("a: '${b}'\nb: '${a}'\nactor_rollout_ref: {rollout: {n: '${a}'}}\n")
    assert found(f"config={path}", *GRPO)["fit"] == "fits"


def test_a_pass_without_a_size_takes_that_of_the_actor():
    key = f"{ROLLOUT}.log_prob_micro_batch_size_per_gpu"
    notes = " ".join(found("config=verl", *GRPO, f"{ACTOR}.ppo_micro_batch_size_per_gpu=4")["notes"])
    assert f"{key}=4 (that of the actor; verl has no default)" in notes
    assert key not in " ".join(found("config=verl", *GRPO, f"{ACTOR}.use_dynamic_bsz=true")["notes"])


def test_words_that_the_script_does_not_state_are_said(tmp_path):
    notes = of_script(tmp_path, f"{CALL} $EXTRA_ARGS\n")["notes"]
    assert any("nothing of $EXTRA_ARGS (run.sh does not state it)" in note for note in notes)


# What verl refuses

ROWS = f"{ACTOR}.ppo_micro_batch_size_per_gpu=1"
DYNAMIC = f"{ACTOR}.use_dynamic_bsz=true"
ULYSSES = f"{ACTOR}.ulysses_sequence_parallel_size"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((DYNAMIC, f"{ACTOR}.ppo_max_token_len_per_gpu=1000"), "a row of 1,024 tokens"),
        ((DYNAMIC, f"{ACTOR}.ppo_max_token_len_per_gpu=300", f"{ULYSSES}=2"), "at least 512 is needed"),
        ((DYNAMIC, f"{ROLLOUT}.log_prob_max_token_len_per_gpu=1000"), f"{ROLLOUT}.log_prob_max_token_len_per_gpu=1000"),
        (
            (DYNAMIC, f"{ACTOR}.use_kl_loss=true", f"{REF}.log_prob_max_token_len_per_gpu=1000"),
            f"{REF}.log_prob_max_token_len_per_gpu=1000",
        ),
        (
            (DYNAMIC, "algorithm.adv_estimator=gae", "critic.ppo_max_token_len_per_gpu=1000"),
            "critic.ppo_max_token_len_per_gpu=1000",
        ),
        (("data.max_response_length=40449",), "the model's context, 40,960 tokens"),
        (("data.max_prompt_length=40960",), "leaves nothing to generate"),
        ((f"{ROLLOUT}.max_model_len=1000",), f"ends rows at {ROLLOUT}.max_model_len=1000"),
        ((f"{ROLLOUT}.max_model_len=50000",), "is more than the model's context"),
        (("data.train_batch_size=100", f"{ACTOR}.ppo_mini_batch_size=100"), "= 100 rows must be divisible by 8"),
        (("data.train_batch_size=128",), "is less than actor_rollout_ref.actor.ppo_mini_batch_size=256"),
        ((f"{ACTOR}.ppo_mini_batch_size=4",), "= 4 rows are fewer than 8 groups"),
        ((f"{ACTOR}.ppo_micro_batch_size_per_gpu=3",), "the 32 rows per GPU"),
        ((f"{ACTOR}.ppo_micro_batch_size=16",), "are both set"),
        (
            (f"{ULYSSES}=2", f"{MODEL}.use_remove_padding=false"),
            "needs actor_rollout_ref.model.use_remove_padding=true",
        ),
        (
            (f"{ULYSSES}=3", "trainer.n_gpus_per_node=6", "data.train_batch_size=768"),
            "must divide the 32 attention heads",
        ),
        (
            (f"{ROLLOUT}.tensor_model_parallel_size=3", "trainer.n_gpus_per_node=6", "data.train_batch_size=768"),
            f"{ROLLOUT}.tensor_model_parallel_size=3 must divide the 32 attention heads",
        ),
        (
            ("model_engine=megatron", f"{ACTOR}.megatron.pipeline_model_parallel_size=8"),
            "pipeline_model_parallel_size=8 must divide the 36 layers",
        ),
    ],
)
def test_what_verl_asserts_is_never_fits(words, said):
    job = found("config=verl", *GRPO, ROWS, *words)
    assert job["fit"] == "not possible"
    assert any(said in reason for reason in job["reasons"]), job["reasons"]
    text = " ".join(answer(["config=verl", *GRPO, ROWS, *words]).split())
    assert "Not possible: verl refuses this job: " in text and "fits" not in text


@pytest.mark.parametrize(
    "words",
    [
        (DYNAMIC, f"{ACTOR}.ppo_max_token_len_per_gpu=1024", f"{ROLLOUT}.log_prob_max_token_len_per_gpu=1024"),
        (DYNAMIC, f"{ACTOR}.ppo_max_token_len_per_gpu=512", f"{ULYSSES}=2"),
        (f"{ACTOR}.ppo_max_token_len_per_gpu=1000",),
        ("data.max_response_length=40448", f"{ROLLOUT}.max_model_len=40960"),
        ("data.max_response_length=131072", f"{MODEL}.override_config.max_position_embeddings=131584"),
        (DYNAMIC, "data.train_batch_size=100"),
        (f"{ULYSSES}=8",),
    ],
)
def test_what_verl_runs_is_decided_by_memory(words):
    assert found("config=verl", *GRPO, ROWS, *words)["fit"] in ("fits", "tight", "does not fit")


@pytest.mark.parametrize("release", ["verl=0.8", "verl=0.9.1"])
def test_what_megatron_runs_is_not_decided(release):
    """Its layers have no formula; before, those of 0.8 were counted as recomputed, and fitted."""
    words = (release, "model_engine=megatron", f"{ACTOR}.megatron.pipeline_model_parallel_size=4")
    job = found("config=verl", *GRPO, ROWS, *words)
    assert job["fit"] == "not decided"
    assert len(job["reasons"]) == len(("layers", "cross-entropy"))


# What has no formula

UNCOUNTED = [
    (f"{MODEL}.lora_rank=64", "whole weights that LoRA gathers"),
    (f"{MODEL}.lora_adapter_path=adapter", "full fine-tuning is counted"),
    (f"{MODEL}.lora.rank=16", "lora.rank=16"),
    (f"{MODEL}.lora.adapter_path=adapter", "full fine-tuning is counted"),
    (f"{ROLLOUT}.name=trtllm", f"{ROLLOUT}.name=trtllm"),
    (f"{ACTOR}.veomni.param_offload=true", "veomni.param_offload"),
    (f"{ACTOR}.fsdp_config.ulysses_sequence_parallel_size=2", "ulysses_sequence_parallel_size=2"),
    (f"{ACTOR}.calculate_sum_pi_squared=true", "calculate_sum_pi_squared"),
    (f"{REF}.strategy=megatron", f"{REF}.strategy=megatron"),
    ("reward_model.enable=true", "the reward model"),
]


@pytest.mark.parametrize(("word", "said"), UNCOUNTED)
def test_what_is_not_counted_is_not_decided(word, said):
    job = found("config=verl", *GRPO, word)
    assert (job["fit"], job["fit_of_counted"]) == ("not decided", "fits")
    assert job["mean_row_that_fits"] is None
    assert any(said in reason for reason in job["reasons"]), job["reasons"]
    assert "Not decided, because this changes memory and has no formula" in " ".join(
        answer(["config=verl", *GRPO, word]).split()
    )


@pytest.mark.parametrize(
    "word",
    [
        f"{MODEL}.lora_rank=0",
        f"{ROLLOUT}.name=vllm",
        f"{ROLLOUT}.name=sglang",
        f"{ACTOR}.fsdp_config.mixed_precision.param_dtype=bf16",
        "critic.fsdp.param_offload=true",
        "trainer.my_own=3",
    ],
)
def test_what_changes_no_memory_is_decided(word):
    job = found("config=verl", *GRPO, word)
    assert job["fit"] == "fits" and "fit_of_counted" not in job and "reasons" not in job


def test_distillation_in_a_script_is_not_decided(tmp_path):
    assert of_script(tmp_path, f"{CALL} distillation.enabled=True\n")["fit"] == "not decided"
    assert of_script(tmp_path, f"{CALL} distillation.enabled=False\n")["fit"] == "fits"


def test_exit_codes_follow_the_verdict(capsys):
    refused, open_ = ["config=verl", *GRPO, "data.max_response_length=99999"], ["config=verl", *GRPO, UNCOUNTED[0][0]]
    assert main([*refused, "fail_if=does_not_fit"]) == EXIT_ANSWER_IS_NO
    assert (main([*open_, "fail_if=does_not_fit"]), main([*open_, "fail_if=tight"])) == (EXIT_OK, EXIT_ANSWER_IS_NO)
    assert main(["config=verl", *GRPO, "model_engine=veomni"]) == EXIT_USAGE
    assert "has no formulas here" in capsys.readouterr().err


@pytest.mark.parametrize("setting", ["tensor_model_parallel_size=2", "gpu_memory_utilization=0.78"])
def test_an_engine_needs_a_pool_for_its_weights(setting):
    """Qwen2.5-32B on one H100: 61.0 GiB of weights, in half of 79.1 GiB."""
    job = ["config=verl", "actor_rollout_ref.model.path=Qwen/Qwen2.5-32B", "algorithm.adv_estimator=grpo"]
    job += ["trainer.n_gpus_per_node=8", "trainer.nnodes=8", "gpu=h100-80gb"]
    alone = "actor_rollout_ref.rollout.tensor_model_parallel_size=1"
    said = json.loads(answer([*job, alone, "format=json"]))
    assert said["fit"] == "vLLM does not start"
    assert "is 39.6 GiB, and its weights take 61.0 GiB; use at least rollout." in said["no_engine"]
    assert f"rollout.{setting}" in said["no_engine"]
    assert said["no_engine"] in " ".join(answer([*job, alone]).split())
    after = json.loads(answer([*job, alone, f"actor_rollout_ref.rollout.{setting}", "format=json"]))
    assert after["fit"] != "vLLM does not start"
    assert "no_engine" not in after


# The engine that the file names


@pytest.mark.parametrize(("name", "title"), [("vllm", "vLLM"), ("sglang", "SGLang"), ("trtllm", "TensorRT-LLM")])
def test_the_pool_has_the_name_of_its_engine(name, title):
    words = ["config=verl", *GRPO, f"actor_rollout_ref.rollout.name={name}"]
    said, small = answer([*words, "details=true"]), answer([*words, "gpu=rtx4090-24gb", *LARGE])
    assert f"\n  {title} " in said
    assert f"{title} does not start: gpu_memory_utilization=0.5" in " ".join(small.split())
    for other in {"vLLM", "SGLang", "TensorRT-LLM"} - {title}:
        assert other not in said and other not in small


LARGE = ("actor_rollout_ref.model.path=Qwen/Qwen2.5-32B", "actor_rollout_ref.rollout.tensor_model_parallel_size=1")


@pytest.mark.parametrize(("name", "title"), [("vllm", "vLLM"), ("sglang", "SGLang")])
def test_what_does_not_start_is_named_in_json(name, title):
    said = found("config=verl", *GRPO, f"actor_rollout_ref.rollout.name={name}", "gpu=rtx4090-24gb", *LARGE)
    assert said["fit"] == f"{title} does not start"


def test_the_figures_are_those_of_the_pool_by_any_name():
    named = [found("config=verl", *GRPO, f"actor_rollout_ref.rollout.name={each}") for each in ("vllm", "sglang")]
    assert named[0] == named[1] == found("config=verl", *GRPO)


def test_adapters_name_the_engine_that_gets_them():
    words = ["config=verl", "verl=0.9.1", *GRPO, "actor_rollout_ref.model.lora_rank=16"]
    words += ["actor_rollout_ref.rollout.load_format=safetensors", "actor_rollout_ref.rollout.layered_summon=true"]
    assert "Not counted: the adapters of SGLang." in answer([*words, "actor_rollout_ref.rollout.name=sglang"])
    assert "the adapters of" not in answer([*words, "actor_rollout_ref.rollout.name=vllm"])


def test_a_rollout_that_verl_no_longer_has_is_said():
    words = ["config=verl", *GRPO, "actor_rollout_ref.rollout.name=hf"]
    assert found(*words)["reasons"] == [
        "actor_rollout_ref.rollout.name=hf is of verl up to 0.5; later ones have vllm, sglang, trtllm"
    ]
    assert "pool" not in answer([*words, "details=true"])


def test_an_engine_of_a_library_is_called_as_its_file_does():
    words = ["config=verl", *GRPO, "actor_rollout_ref.rollout.name=atom"]
    assert found(*words)["fit"] == "not decided"
    assert "\n  atom " in answer([*words, "details=true"])
