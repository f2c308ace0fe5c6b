"""A recipe is answered for the releases of trl that it can be for: their defaults, both peaks, the dearest decides."""

import json
import re
from itertools import permutations, product

import pytest
import yaml

from profiler.config.models.architecture import read_architecture
from profiler.domain.errors import EXIT_ANSWER_IS_NO, EXIT_USAGE, UsageError
from profiler.domain.models.builtin_models import BUILTIN_MODELS
from profiler.domain.trials.trial import Backend, Logprobs, TrialSpec
from profiler.estimate.job import trial
from profiler.estimate.main import answer, main
from profiler.monitor.command import read_command as read_monitor
from profiler.solve.main import main as solve

STATED = {
    "model_name_or_path": "Qwen/Qwen2.5-0.5B",
    "torch_dtype": "bfloat16",
    "bf16": True,
    "beta": 0.04,
    "gradient_checkpointing": True,
    "optim": "adamw_torch",
    "num_generations": 8,
    "per_device_train_batch_size": 8,
    "gradient_accumulation_steps": 1,
    "max_prompt_length": 256,
    "max_completion_length": 512,
}
"""Every key of which the default changed."""


def _recipe(tmp_path, without=(), **changes):
    path = tmp_path / "recipe.yaml"
    keys = {key: value for key, value in {**STATED, **changes}.items() if key not in without}
    path.write_text(yaml.safe_dump(keys))
    return f"config={path}"


def _found(*words):
    return json.loads(answer([*words, "format=json"]))


def _peaks(found):
    """Return the reserved peaks of the note, in GiB, by releases."""
    (line,) = [note for note in found["notes"] if note.startswith("Peaks, allocated / reserved: ")]
    parts = re.findall(r"/ ([\d.]+) GiB with trl ((?:[\d.]+\d|to|and| )+)", line)
    return {releases: float(size) for size, releases in parts}


def test_a_recipe_that_states_everything_has_one_answer(tmp_path):
    found = _found(_recipe(tmp_path), "trl=1.16")
    assert not any(line.startswith("Peaks") for line in found["notes"])
    assert (found["trial"]["logprobs"], found["trial"]["beta"], found["trial"]["optim"]) == (
        "fused",
        0.04,
        "adamw_torch",
    )
    earlier = _found(_recipe(tmp_path), "trl=0.20")
    assert not any(line.startswith("Peaks") for line in earlier["notes"])
    assert earlier["trial"] == {**found["trial"], "logprobs": "selective_row_entropy"}


@pytest.mark.parametrize(
    ("left_out", "words", "default", "dearest"),
    [
        ("beta", ["beta=0.0", "beta=0.04"], "beta=0.04 (trl 0.16 to 0.18) or 0.0 (trl 0.19 to 0.26)", {"beta": 0.04}),
        (
            "gradient_checkpointing",
            ["gradient_checkpointing=true", "gradient_checkpointing=false"],
            "gradient_checkpointing=false (trl 0.16 to 0.21) or true (trl 0.22 to 0.26)",
            {"gradient_checkpointing": False},
        ),
        (
            "optim",
            ["optim=adamw_torch_fused", "optim=adamw_torch"],
            "optim=adamw_torch (trl 0.16 to 0.20) or adamw_torch_fused (trl 0.21 to 0.26)",
            {"optim": "adamw_torch"},
        ),
    ],
)
def test_where_a_default_differs_the_dearer_peak_is_the_answer(tmp_path, left_out, words, default, dearest):
    # So short that the peak of each is in the step, where optimizers differ.
    config = _recipe(tmp_path, without=(left_out,), epsilon=0.2, max_completion_length=64)
    found = _found(config)
    assert default in found["notes"][0]
    assert "trl 0.16 to 0.26 (by epsilon and torch_dtype; trl=VERSION states yours)" in found["notes"][0]
    peaks = _peaks(found)
    stated = [_found(config, word) for word in words]
    reserved = [each["peak_reserved_bytes"] for each in stated]
    assert sorted(peaks.values()) == pytest.approx(sorted(size / 2**30 for size in reserved), abs=0.06)
    assert found["peak_reserved_bytes"] == max(reserved) > min(reserved)
    assert {key: found["trial"][key] for key in dearest} == dearest


def test_a_reference_model_is_never_assumed_without_a_word(tmp_path):
    for word in ("trl=0.18", "trl=0.15", "trl=1.16"):
        found = _found(_recipe(tmp_path, without=("beta",)), word)
        has_reference = any(
            share["category"] == "reference" for phase in found["phases"] for share in phase["categories"]
        )
        assert has_reference is (word != "trl=1.16")
        assert any("beta=0.04" in line for line in found["notes"]) is has_reference


def test_the_dearer_decides_the_verdict(tmp_path, capsys):
    config = _recipe(tmp_path, without=("beta",), model_name_or_path="Qwen/Qwen2.5-3B", max_completion_length=256)
    words = [config, "gpu=24GiB", "fail_if=does_not_fit"]
    fits = [trl for trl in ("0.18", "0.26") if main([*words, f"trl={trl}"]) != EXIT_ANSWER_IS_NO]
    assert main(words) == EXIT_ANSWER_IS_NO
    assert fits != ["0.18", "0.26"]
    capsys.readouterr()


def test_a_release_that_refuses_the_recipe_is_left_out(tmp_path):
    # 0.14 to 0.16 generate each micro-batch alone, and 2 rows are no group of 8.
    config = _recipe(tmp_path, per_device_train_batch_size=2, gradient_accumulation_steps=4, epsilon=0.2)
    found = _found(config, "num_processes=1")
    assert found["trial"]["steps_per_generation"] == 4


@pytest.mark.parametrize(("trl", "length"), [("0.18", 768), ("0.25", 768), ("0.26", None)])
def test_vllm_is_given_prompt_and_completion(tmp_path, trl, length):
    config = _recipe(tmp_path, use_vllm=True, vllm_mode="colocate")
    assert _found(config, f"trl={trl}")["trial"]["vllm_max_model_length"] == length


def test_vllms_length_follows_the_command_line(tmp_path):
    config = _recipe(tmp_path, use_vllm=True, vllm_mode="colocate")
    found = _found(config, "trl=0.20", "max_completion_length=1000")
    assert found["trial"]["vllm_max_model_length"] == 256 + 1000
    grid = _found(config, "trl=0.20", "max_completion_length=1000,2000")
    assert [point["trial"]["vllm_max_model_length"] for point in grid["points"]] == [1256, 2256]
    stated = _found(config, "trl=0.20", "vllm_max_model_length=4096")
    assert stated["trial"]["vllm_max_model_length"] == 4096


def test_a_grid_answers_the_dearest_at_each_combination(tmp_path):
    config = _recipe(tmp_path, without=("beta",))
    both = _found(config, "max_completion_length=128,1024")["points"]
    old = _found(config, "trl=0.18", "max_completion_length=128,1024")["points"]
    new = _found(config, "trl=0.26", "max_completion_length=128,1024")["points"]
    wanted = [
        max(pair) for pair in zip(*[[p["peak_reserved_bytes"] for p in points] for points in (old, new)], strict=True)
    ]
    assert [point["peak_reserved_bytes"] for point in both] >= wanted


def test_the_largest_length_is_that_of_the_dearest_release(tmp_path, capsys):
    def largest(*words):
        config = _recipe(tmp_path, without=("max_completion_length",), epsilon=0.2)
        assert solve(["max_completion_length", config, "gpu=24GiB", "confirm=false", "format=json", *words]) == 0
        return json.loads(capsys.readouterr().out)["answers"][0]["largest"]

    each = [largest(f"trl={release}") for release in ("0.16", "0.20", "0.26")]
    assert largest() == min(each) < largest("trl=1.16")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["trl=0.2"], "must be a release of trl from 0.14 to 1.16"),
        (["trl=2.0"], "must be a release of trl"),
        (["trl=0.21", "recipe=rloo"], "has another RLOOTrainer"),
    ],
)
def test_a_release_that_is_unknown_is_a_fault(tmp_path, capsys, words, said):
    assert main([_recipe(tmp_path), *words]) == EXIT_USAGE
    assert said in capsys.readouterr().err


def test_a_release_needs_files_of_trl(capsys):
    assert main(["model=qwen2.5-0.5b", "trl=0.18"]) == EXIT_USAGE
    assert "is for the files of config=" in capsys.readouterr().err
    with pytest.raises(UsageError, match="these are of verl"):
        answer(["config=verl", "actor_rollout_ref.model.path=Qwen/Qwen2.5-0.5B", "trl=0.18"])


def test_every_command_that_takes_a_recipe_takes_a_release(tmp_path, capsys):
    config = _recipe(tmp_path)
    assert solve(["gpu", config, "trl=0.18"]) == 0
    from profiler.advise.main import main as advise

    assert advise([config, "gpu=24GiB", "trl=0.18"]) == 0
    assert "logprobs=selective" in capsys.readouterr().out
    assert read_monitor([config, "trl=0.18", "true"]).estimate == (config, "trl=0.18")


def test_a_model_without_a_formula_of_logits_is_answered(tmp_path):
    config = _recipe(tmp_path, model_name_or_path="Qwen/Qwen2.5-VL-3B-Instruct", max_prompt_length=2048)
    found = _found(config, "trl=0.26")
    assert found["trial"]["logprobs"] == "fused"
    assert any("the logits of all completions at once" in line for line in found["notes"])


def test_a_grid_and_solve_name_logits_without_a_formula(tmp_path, capsys):
    config = _recipe(tmp_path, model_name_or_path="Qwen/Qwen2.5-VL-3B-Instruct", max_prompt_length=2048)
    said = "Not counted: the logits of all completions at once"
    for release, is_named in (("0.26", True), ("1.16", False)):
        words = [config, f"trl={release}"]
        assert (said in " ".join(answer([*words, "optim=sgd,adamw_torch"]).split())) is is_named
        assert solve(["gpu", *words]) == 0
        assert (said in " ".join(capsys.readouterr().out.split())) is is_named


def test_all_logits_of_each_release_are_counted(tmp_path):
    """By hand: 8 rows x 512 tokens x 151,936 entries x 4 B = 2.32 GiB, and more of it in backward than trl 0.14."""
    config, one = _recipe(tmp_path), 8 * 512 * 151_936 * 4

    def peak(release, *words):
        found = _found(config, f"trl={release}", *words)
        assert not any("logits" in line and line.startswith("Not counted") for line in found["notes"])
        return found["peak_allocated_bytes"]

    # In 0.14 a batch has 8 rows of the recipe, each with 8 completions.
    full, newest = peak("1.14"), peak("1.16")
    assert newest < full
    for release, more in (("0.20", 1), ("0.26", 1), ("1.5", 2), ("1.12", 1)):
        assert peak(release) - full == pytest.approx(more * one, rel=0.01), release


def test_the_dearest_way_to_make_logits_decides_everywhere(tmp_path, capsys):
    """From 1.0 on only log-probabilities differ between releases, once the recipe states the rest."""
    left_out = ("torch_dtype", "max_prompt_length", "max_completion_length")
    config = _recipe(tmp_path, without=left_out, dtype="bfloat16", pad_to_multiple_of=1)
    words = [config, "max_prompt_length=256"]
    found = _found(*words, "max_completion_length=512")
    assert found["trial"]["logprobs"] == "selective_in_place"
    said = "selective_kept (trl 1.10 to 1.13) or selective_kernel (trl 1.14) or fused"
    assert said in found["notes"][0]
    assert found["notes"][-1].endswith("The answer is the dearest: trl 1.0 to 1.9.")
    lengths = "max_completion_length=512,1024"
    assert _found(*words, lengths)["points"] == _found(*words, lengths, "trl=1.5")["points"]

    def longest(*more):
        assert solve(["max_completion_length", *words, "gpu=24GiB", "confirm=false", "format=json", *more]) == 0
        solved = json.loads(capsys.readouterr().out)
        return solved["answers"][0]["largest"], solved["notes"]

    (whole, notes), (dear, _), (cheap, _) = longest(), longest("trl=1.5"), longest("trl=1.12")
    assert whole == dear < cheap
    assert any(said in note for note in notes)


def test_what_is_left_out_of_the_replays_is_not_the_dearest():
    """In some of the pairs the one with less allocated memory needs more of the card, by its fragments."""
    name = "qwen2.5-0.5b"
    architecture = read_architecture(BUILTIN_MODELS[name].config, model=name)
    ways, lengths = (Logprobs.FULL, Logprobs.SELECTIVE, Logprobs.SELECTIVE_IN_PLACE, Logprobs.FUSED), (256, 512)
    candidates = [
        trial.Candidate(
            spec=TrialSpec(
                backend=Backend.SIMULATED, gpu=gpu, model=name, logprobs=logprobs, max_completion_length=length
            ),
            notes=(),
            releases=(),
        )
        for logprobs, length, gpu in product(ways, lengths, ("rtx-4090-24gb", None))
    ]
    needs = {each.spec: trial._needs(each.spec, lambda _: architecture) for each in candidates}
    bounds = {each.spec: trial._bounds(each.spec, lambda _: architecture) for each in candidates}
    turned = 0
    for pair in permutations(candidates, 2):
        first, second = pair
        assert trial._dearest(pair, lambda _: architecture) == (
            first if needs[first.spec] >= needs[second.spec] else second
        )
        turned += bounds[first.spec][0] > bounds[second.spec][0] and needs[first.spec] < needs[second.spec]
    assert turned


@pytest.mark.parametrize("release", ["0.14", "0.15", "0.16", "0.17"])
@pytest.mark.parametrize("is_loaded", [False, True])
def test_a_loaded_model_has_no_kernels_by_use_liger(tmp_path, release, is_loaded):
    """trl 0.14 and 0.15 load a model by its name with Liger's kernels; later ones set `use_liger_kernel`."""
    load = "AutoModelForCausalLM.from_pretrained('Qwen/Qwen2.5-0.5B', torch_dtype='float32')"
    lines = ["from trl import SFTConfig, SFTTrainer", "from transformers import AutoModelForCausalLM"]
    lines += [f"model = {load if is_loaded else repr('Qwen/Qwen2.5-0.5B')}"]
    lines += ["SFTTrainer(model=model, args=SFTConfig(use_liger=True, max_seq_length=512)).train()"]
    path = tmp_path / "train.py"
    path.write_text("\n".join(lines))
    found = _found(f"config={path}", f"trl={release}")["trial"]
    has_kernels = not is_loaded or release in ("0.16", "0.17")
    assert found["use_liger_kernel"] is has_kernels
    # Also without kernels use_liger leaves out the accuracy, whose logits are copied.
    assert found["logprobs"] == ("fused" if has_kernels else "nll")


WRAPPED = """
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM
from trl import {kind}Config, {kind}Trainer
model = AutoModelForCausalLM.from_pretrained("Qwen/Qwen2.5-0.5B", dtype="bfloat16")
lora = LoraConfig(r=8, target_modules="all-linear")
model = get_peft_model(model, lora)
args = {kind}Config({stated})
{kind}Trainer(model=model, args=args, train_dataset=rows).train()
"""


@pytest.mark.parametrize(
    ("kind", "stated", "release", "is_copied"),
    [
        ("GRPO", "beta=0.04", "0.26", False),
        ("GRPO", "beta=0.04", "0.27", True),
        ("GRPO", "beta=0.0", "1.16", False),
        ("RLOO", "", "1.16", True),
        ("DPO", "max_length=512", "1.16", True),
        ("KTO", "max_length=512", "1.16", True),
        ("SFT", "max_length=512", "1.16", False),
    ],
)
def test_adapters_of_a_wrapped_model_are_copied_as_reference(tmp_path, kind, stated, release, is_copied):
    """By trl from the release on that keeps them; what the trainer wraps itself is not copied."""
    path = tmp_path / "train.py"
    as_stated = WRAPPED.format(kind=kind, stated=stated)
    by_trainer = as_stated.replace("get_peft_model(model, lora)", "model").replace(
        "args=args", "args=args, peft_config=lora"
    )
    for text, may_be in ((as_stated, is_copied), (by_trainer, False)):
        path.write_text(text)
        asked = [f"config={path}", "gpu=h100-80gb", f"trl={release}"]
        assert _found(*asked)["trial"]["ref_adapter"] is may_be
        said = " ".join(answer(asked).split())
        assert ("ref_adapter=true (a frozen copy of the adapters as reference" in said) is may_be, said
        assert "copied adapters" not in " ".join(answer([*asked, "ref_adapter=false"]).split())
        shards = " ".join(answer([*asked, "num_processes=2", "distributed_type=deepspeed", "zero_stage=2"]).split())
        assert ("ref_adapter=true (a frozen copy of the adapters as reference" in shards) is may_be, shards
        if kind in ("GRPO", "RLOO"):  # whose adapters have a formula with ZeRO-3
            wide = " ".join(answer([*asked, "num_processes=2", "distributed_type=deepspeed", "zero_stage=3"]).split())
            assert ("both in float32 under ZeRO-3" in wide) is may_be, wide
