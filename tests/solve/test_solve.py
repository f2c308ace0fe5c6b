"""`python -m profiler.solve`: the largest setting that fits, and the smallest card."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest
import yaml

from profiler.analytical.explanation.boundary import Boundary
from profiler.analytical.explanation.explained import CardVerdict, Fit, card_verdict
from profiler.config.models.lookup import builtin_architecture
from profiler.config.trials.specification import parse_point
from profiler.domain.cards.gpu import KNOWN_GPUS
from profiler.domain.errors import EXIT_OK, EXIT_USAGE
from profiler.domain.runs.outcome import Status
from profiler.domain.trials.trial import Backend, TrialSpec
from profiler.estimate.job.trial import dearest_spec
from profiler.rendering.answers.solve import Choice, ChoiceAnswer, SimulatedSide, choice_text
from profiler.solve import search
from profiler.solve.command import read_command
from profiler.solve.main import job_of, main
from profiler.solve.search import PRECISION, Confirmation, KeySearch

MODEL = "qwen2.5-7b"


SPEC = TrialSpec(backend=Backend.SIMULATED, gpu="t4-16gb", model=MODEL)


@pytest.fixture(autouse=True)
def _two_cores(monkeypatch):
    monkeypatch.setattr("profiler.solve.main.usable_cores", lambda: 2)


def card_verdict_of(gpu: str) -> CardVerdict:
    """Return the verdict of full fine-tuning, which fits no small card."""
    architecture = builtin_architecture(MODEL)
    assert architecture is not None
    return card_verdict(SPEC, architecture, KNOWN_GPUS[gpu])


def _never(specs: Mapping[int, TrialSpec]) -> Sequence[SimulatedSide]:
    raise AssertionError("nothing is simulated with confirm=false")


def _solved(capsys, *words: str) -> dict:
    assert main([*words, "confirm=false", "format=json"], simulate=_never) == EXIT_OK
    return json.loads(capsys.readouterr().out)


def _fit(gpu: str, **keys: object) -> Fit:
    architecture = builtin_architecture(MODEL)
    assert architecture is not None
    spec = parse_point(
        {"backend": "simulated", "model": MODEL, "gpu": gpu, **keys}, architecture_of=lambda _: architecture
    )
    return card_verdict(spec, architecture, KNOWN_GPUS[gpu], replays=True).fit


def test_the_largest_value_fits_and_the_next_does_not(capsys):
    words = ("max_completion_length", f"model={MODEL}", "tuning=lora", "gpu=rtx-4090-24gb")
    (answer,) = _solved(capsys, *words)["answers"]
    largest = answer["largest"]
    assert answer["beyond"] == largest + 1
    assert _fit("rtx-4090-24gb", tuning="lora", max_completion_length=largest) is Fit.FITS
    assert _fit("rtx-4090-24gb", tuning="lora", max_completion_length=largest + 1) is not Fit.FITS
    assert answer["largest_needed_bytes"] <= KNOWN_GPUS["rtx-4090-24gb"].memory_bytes < answer["beyond_needed_bytes"]


def test_only_values_that_trl_allows_are_tried(capsys):
    words = ("per_device_train_batch_size", f"model={MODEL}", "tuning=lora", "num_generations=8", "gpu=h100-80gb")
    (answer,) = _solved(capsys, *words, "gradient_accumulation_steps=1")["answers"]
    assert answer["largest"] % 8 == 0
    assert answer["beyond"] == answer["largest"] + 8


def test_a_margin_stays_free(capsys):
    words = ("max_completion_length", f"model={MODEL}", "tuning=lora", "gpu=rtx-4090-24gb")
    (whole,) = _solved(capsys, *words)["answers"]
    (answer,) = _solved(capsys, *words, "margin=5%")["answers"]
    assert answer["largest"] < whole["largest"]
    assert answer["largest_needed_bytes"] <= 0.95 * KNOWN_GPUS["rtx-4090-24gb"].memory_bytes
    assert answer["margin"] == 0.05


def test_the_context_of_a_model_ends_the_search(capsys):
    (answer,) = _solved(capsys, "max_completion_length", "model=tiny", "gpu=b200-180gb")["answers"]
    architecture = builtin_architecture("tiny")
    assert architecture is not None
    assert (answer["largest"], answer["beyond"]) == (architecture.max_position_embeddings - 256, None)


def test_nothing_fits(capsys):
    assert main(["max_completion_length", f"model={MODEL}", "gpu=t4-16gb", "confirm=false"], simulate=_never) == EXIT_OK
    assert capsys.readouterr().out.startswith("max_completion_length: none fits.")


def test_several_values_of_another_key_have_a_line_each(capsys):
    words = ("max_completion_length", f"model={MODEL}", "tuning=lora", "per_device_train_batch_size=4,8")
    fewer, more = _solved(capsys, *words, "gpu=h100-80gb")["answers"]
    assert fewer["trial"]["per_device_train_batch_size"] == 4
    assert fewer["largest"] > more["largest"]


def test_the_smallest_card(capsys):
    (answer,) = _solved(capsys, "gpu", f"model={MODEL}", "tuning=lora")["answers"]
    sizes = {gpu["gpu"]: gpu["memory_bytes"] for gpu in answer["gpus"]}
    fitting = [name for name in sizes if _fit(name, tuning="lora") is Fit.FITS]
    assert answer["smallest"] == min(fitting, key=sizes.__getitem__)


def test_no_card_is_large_enough(capsys):
    words = ["gpu", "model=qwen2.5-14b", "dtype=float32", "max_completion_length=16000", "margin=90%"]
    assert main(words) == EXIT_OK
    assert "No card is large enough." in capsys.readouterr().out


def test_both_sides_are_simulated(capsys):
    asked = []

    def simulate(specs: Mapping[int, TrialSpec]) -> Sequence[SimulatedSide]:
        asked.extend(specs)
        return [
            SimulatedSide(value=value, status=status, needed_bytes=2**30, message="")
            for value, status in zip(specs, (Status.OK, Status.OOM), strict=True)
        ]

    assert main(["max_completion_length", f"model={MODEL}", "tuning=lora", "gpu=rtx-4090-24gb"], simulate=simulate) == 0
    said = capsys.readouterr()
    assert said.err.startswith("Simulating values near each boundary")
    assert len(asked) == 4
    assert asked[0] < asked[2] < asked[3] < asked[1]
    lines = [line for line in said.out.splitlines() if "simulated" in line]
    assert [line.rpartition("simulated: ")[2] for line in lines] == [
        "fits, 1.0 GiB at least",
        "does not fit, 1.0 GiB at least",
    ]


def test_a_file_of_trl_is_read_as_for_an_estimate(tmp_path, capsys):
    path = tmp_path / "grpo.yaml"
    path.write_text(yaml.safe_dump({"model_name_or_path": "Qwen/Qwen2.5-7B", "use_peft": True, "my_key": 1}))
    words = ["gpu=h100-80gb", "trl=1.16", "confirm=false", "format=json"]
    assert main(["max_completion_length", f"config={path}", *words]) == EXIT_OK
    said = capsys.readouterr()
    assert "my_key" in said.err
    found = json.loads(said.out)
    assert found["answers"][0]["trial"]["tuning"] == "lora"
    assert "max_prompt_length=256" in found["notes"][0]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "name one key to solve for"),
        (["max_completion_length", "num_generations", "steps"], "name one key to solve for"),
        (["beta"], "has no largest value that fits"),
        (["max_completion_lenght"], "Did you mean 'max_completion_length'?"),
        (["max_completion_length", "max_completion_length=4"], "is what is solved for"),
        (["max_completion_length", "margin=2"], "margin=2: must be a number of at most 0.9"),
        (["max_completion_length", "confirm=perhaps"], "confirm=perhaps: must be true or false"),
        (["max_completion_length", "num_generations=1"], "num_generations=1"),
        (["max_completion_length", "gpu=a100"], "gpu=a100"),
        (["gpu", "max_completion_length=4,8"], "solve gpu takes one value per key"),
    ],
)
def test_wrong_input_is_one_sentence(words, said, capsys):
    assert main([*words, f"model={MODEL}"], simulate=_never) == EXIT_USAGE
    found = capsys.readouterr().err
    assert said in found
    assert len(found.splitlines()) == 1


def test_help(capsys):
    assert main(["--help"]) == EXIT_OK
    assert "python -m profiler.solve gpu|num_processes|model config=FILE.yaml" in capsys.readouterr().out


ASKED = ["max_completion_length", f"model={MODEL}", "tuning=lora", "gpu=rtx-4090-24gb"]


def _simulation_of(largest: int, *, status: Status = Status.OOM):
    """Return a simulation in which `largest` is the last value that fits, and the values that it was asked for."""
    asked: list[int] = []

    def simulate(specs: Mapping[int, TrialSpec]) -> Sequence[SimulatedSide]:
        asked.extend(specs)
        return [
            SimulatedSide(
                value=value,
                status=Status.OK if value <= largest else status,
                needed_bytes=2**30 if value <= largest or status is Status.OOM else None,
                message="",
            )
            for value in specs
        ]

    return simulate, asked


@pytest.mark.parametrize("part", [0.01, 0.3, 0.96, 0.999, 1.0, 1.001, 1.04, 3.0])
def test_an_answer_agrees_with_its_own_simulation(part, capsys):
    """Whatever the simulation says, the printed value fits by it, and the next printed one does not."""
    (by_estimate,) = _solved(capsys, *ASKED)["answers"]
    last = int(by_estimate["largest"] * part)
    simulate, asked = _simulation_of(last)
    assert main([*ASKED, "format=json"], simulate=simulate) == EXIT_OK
    (answer,) = json.loads(capsys.readouterr().out)["answers"]
    assert answer["largest"] <= last < answer["beyond"]
    assert answer["beyond"] - answer["largest"] <= max(1, last * PRECISION)
    sides = {side["value"]: side["status"] for side in answer["simulated"]}
    assert (sides[answer["largest"]], sides[answer["beyond"]]) == ("ok", "oom")
    assert sorted(asked) == sorted(sides), "each value is simulated once"
    assert len(asked) <= 24
    is_near = abs(answer["largest"] - by_estimate["largest"]) <= PRECISION * by_estimate["largest"]
    assert answer["decided_by"] == ("estimate and simulation" if is_near else "simulation")
    assert is_near or not 0.999 <= part <= 1.001
    assert answer["estimated_largest"] == by_estimate["largest"]


def test_simulations_begin_where_the_replay_leaves_nothing(capsys):
    """The estimate has a margin for the error of its replay, and the search by simulation begins without it."""
    (by_estimate,) = _solved(capsys, *ASKED)["answers"]
    simulate, asked = _simulation_of(10**9)
    assert main(ASKED, simulate=simulate) == EXIT_OK
    assert asked[0] > 1.03 * by_estimate["largest"]
    inputs = job_of(read_command(list(ASKED)))
    key = KeySearch(ASKED[0], {}, inputs=inputs, margin=0.0, architecture_of=builtin_architecture)
    gpu = KNOWN_GPUS["rtx-4090-24gb"]
    cards = [card_verdict(key.at(value), builtin_architecture(MODEL), gpu, replays=True) for value in asked[:2]]
    parts = [(card.needed.likely_bytes + card.outside_bytes) / gpu.memory_bytes for card in cards]
    assert all(0.98 < part < 1.02 for part in parts)


def test_the_text_says_which_of_the_two_decided(capsys):
    (by_estimate,) = _solved(capsys, *ASKED)["answers"]
    simulate, _ = _simulation_of(1000)
    assert main(ASKED, simulate=simulate) == EXIT_OK
    said = capsys.readouterr().out
    assert said.startswith("max_completion_length: at most 1,000.") or "at most 99" in said
    assert f"The simulation decides; the estimate says at most {by_estimate['largest']:,}." in said


def test_nothing_fits_by_the_simulation(capsys):
    simulate, _ = _simulation_of(0)
    assert main([*ASKED, "format=json"], simulate=simulate) == EXIT_OK
    (answer,) = json.loads(capsys.readouterr().out)["answers"]
    assert (answer["largest"], answer["decided_by"]) == (None, "simulation")


def test_a_simulation_may_find_a_value_where_the_estimate_finds_none(capsys):
    words = ["max_completion_length", f"model={MODEL}", "gpu=t4-16gb", "format=json"]
    simulate, _ = _simulation_of(700)
    assert main(words, simulate=simulate) == EXIT_OK
    (answer,) = json.loads(capsys.readouterr().out)["answers"]
    assert answer["largest"] <= 700 < answer["beyond"]
    assert answer["estimated_largest"] is None


def test_every_allowed_value_may_fit_by_the_simulation(capsys):
    simulate, _ = _simulation_of(10**9)
    assert main([*ASKED, "format=json"], simulate=simulate) == EXIT_OK
    (answer,) = json.loads(capsys.readouterr().out)["answers"]
    architecture = builtin_architecture(MODEL)
    assert architecture is not None
    assert (answer["largest"], answer["beyond"]) == (architecture.max_position_embeddings - 256, None)


def test_only_allowed_values_are_simulated(capsys):
    simulate, asked = _simulation_of(50)
    words = ["per_device_train_batch_size", f"model={MODEL}", "tuning=lora", "num_generations=8", "gpu=h100-80gb"]
    assert main([*words, "gradient_accumulation_steps=1", "format=json"], simulate=simulate) == EXIT_OK
    (answer,) = json.loads(capsys.readouterr().out)["answers"]
    assert (answer["largest"], answer["beyond"]) == (48, 56)
    assert all(value % 8 == 0 for value in asked)


def test_a_margin_counts_for_the_simulation_too(capsys):
    """What needs 23 GiB of 23.5 fits, but leaves no 10 %."""

    def simulate(specs: Mapping[int, TrialSpec]) -> Sequence[SimulatedSide]:
        return [
            SimulatedSide(value=value, status=Status.OK, needed_bytes=(23 if value > 500 else 20) * 2**30, message="")
            for value in specs
        ]

    assert main([*ASKED, "margin=10%", "format=json"], simulate=simulate) == EXIT_OK
    (answer,) = json.loads(capsys.readouterr().out)["answers"]
    assert answer["largest"] <= 500 < answer["beyond"]


def test_without_a_margin_the_run_on_the_card_decides(capsys):
    """With 200 tokens it needs more of a larger card, and fits this one because its cache is freed."""

    def simulate(specs: Mapping[int, TrialSpec]) -> Sequence[SimulatedSide]:
        return [
            SimulatedSide(
                value=value,
                status=Status.OK if value <= 200 else Status.OOM,
                needed_bytes=(20 + 4 * (value > 199)) * 2**30,
                message="",
            )
            for value in specs
        ]

    assert main(ASKED, simulate=simulate) == EXIT_OK
    said = capsys.readouterr().out
    assert said.startswith("max_completion_length: at most 200.")
    assert "simulated: fits, when its cache is freed; 24.0 GiB on a larger card" in said
    assert "simulated: does not fit, 24.0 GiB at least" in said


def test_a_larger_value_that_fits_again_is_named(capsys):
    asked: list[int] = []

    def simulate(specs: Mapping[int, TrialSpec]) -> Sequence[SimulatedSide]:
        asked.extend(specs)
        first_status = {asked[0]: Status.OOM}
        return [
            SimulatedSide(value=value, status=first_status.get(value, Status.OK), needed_bytes=2**30, message="")
            for value in specs
        ]

    assert main(ASKED, simulate=simulate) == EXIT_OK
    assert f"{asked[1]:,} fits again" in capsys.readouterr().out


def test_a_simulation_without_an_answer_leaves_the_estimate(capsys):
    simulate, _ = _simulation_of(0, status=Status.FAILED)
    assert main(ASKED, simulate=simulate) == EXIT_OK
    assert "The estimate decides: a simulation of max_completion_length has no answer." in capsys.readouterr().out


def test_the_fewest_gpus_that_are_enough(capsys):
    (answer,) = _solved(capsys, "num_processes", "model=qwen2.5-14b", "gpu=a100-80gb")["answers"]
    tried = {each["value"]: each for each in answer["choices"]}
    assert (answer["best"], list(tried)[:4]) == (8, [1, 2, 4, 8])
    memory_bytes = KNOWN_GPUS["a100-80gb"].memory_bytes
    assert tried[8]["needed_bytes"] <= memory_bytes < tried[4]["needed_bytes"]
    # By hand: 14.8e9 parameters in float32 with two states and gradients of two bytes are some 240 GB, an eighth each.
    assert tried[8]["verdict"] == Fit.FITS.value


def test_without_a_word_on_sharding_fsdp_is_assumed(capsys):
    words = ("num_processes", f"model={MODEL}", "gpu=a100-40gb")
    assumed = _solved(capsys, *words)
    assert any("distributed_type=fsdp" in note for note in assumed["notes"])
    stated = _solved(capsys, *words, "distributed_type=fsdp")
    assert stated["notes"] == []
    assert stated["answers"][0]["best"] == assumed["answers"][0]["best"]
    other = _solved(capsys, *words, "distributed_type=deepspeed", "zero_stage=3")
    assert other["answers"][0]["choices"] != stated["answers"][0]["choices"]


def test_where_no_number_is_enough_the_peak_says_why(capsys):
    found = _solved(capsys, "num_processes", "model=qwen2.5-32b", "gpu=a100-80gb")
    assert found["answers"][0]["best"] is None
    # By hand: 32.8e9 parameters x 2 B = 61 GiB of gradients, whole until the last micro-batch, and the head's new one.
    assert any("the peak is in backward: gradients 65.4 GiB" in note for note in found["notes"])
    shards_nothing = _solved(capsys, "num_processes", f"model={MODEL}", "gpu=4090", "distributed_type=multi_gpu")
    assert shards_nothing["answers"][0]["best"] is None
    assert any("DDP shards nothing" in note for note in shards_nothing["notes"])


def test_a_number_of_gpus_as_a_file_shards(capsys, tmp_path):
    accelerate = tmp_path / "zero3.yaml"
    accelerate.write_text(
        yaml.safe_dump(
            {
                "compute_environment": "LOCAL_MACHINE",
                "distributed_type": "DEEPSPEED",
                "deepspeed_config": {"zero_stage": 3},
                "mixed_precision": "bf16",
                "num_processes": 8,
            }
        )
    )
    recipe = tmp_path / "grpo.yaml"
    recipe.write_text(
        yaml.safe_dump({"model_name_or_path": "Qwen/Qwen2.5-7B", "num_generations": 8, "dtype": "bfloat16"})
    )
    found = _solved(capsys, "num_processes", f"config={recipe}", f"config={accelerate}", "gpu=h100")
    assert found["answers"][0]["trial"]["distributed_type"] == "deepspeed"
    assert found["answers"][0]["trial"]["zero_stage"] == 3
    assert not any("Assumed: more than one GPU" in note for note in found["notes"])


def test_the_largest_model_of_a_family(capsys):
    words = ("model", "model=qwen2.5-7b", "tuning=qlora", "gpu=4090")
    (answer,) = _solved(capsys, *words)["answers"]
    tried = {each["value"]: each["verdict"] for each in answer["choices"]}
    assert next(iter(tried)) == "qwen2.5-72b"
    assert all(name.startswith("qwen2.5-") for name in tried)
    assert answer["best"] == "qwen2.5-14b"
    assert tried["qwen2.5-32b"] != Fit.FITS.value
    (less,) = _solved(capsys, *words, "margin=60%")["answers"]
    assert less["best"] == "qwen2.5-7b"


def test_choices_as_text_name_the_best_last(capsys):
    assert main(["num_processes", "model=qwen2.5-14b", "gpu=a100-80gb"], simulate=_never) == EXIT_OK
    lines = capsys.readouterr().out.splitlines()
    assert "on a100-80gb:" in " ".join(lines[1:3])
    assert [line.split()[0] for line in lines if "needs" in line] == ["1", "2", "4", "8"]
    assert lines[6].endswith("<- the fewest GPUs that are enough") or "the fewest GPUs" in " ".join(lines)
    assert main(["model", "model=qwen2.5-0.5b", "gpu=12GiB", "dtype=float32", "fail_if=does_not_fit"]) in (EXIT_OK, 4)


@pytest.mark.parametrize(
    ("words", "fault"),
    [
        (["num_processes,lora_rank", f"model={MODEL}"], "num_processes is solved for by itself"),
        (["model,max_completion_length", f"model={MODEL}"], "model is solved for by itself"),
        (["num_processes", f"model={MODEL}", "num_processes=2"], "is what is solved for"),
        (
            ["num_processes", f"model={MODEL}", "max_completion_length=4,8"],
            "solve num_processes takes one value per key",
        ),
        (["model"], "model"),
    ],
)
def test_wrong_choices_are_refused(capsys, words, fault):
    assert main(words, simulate=_never) == EXIT_USAGE
    assert fault in capsys.readouterr().err


def test_where_several_gpus_have_no_formula_there_is_no_answer(capsys):
    words = ["num_processes", f"model={MODEL}", "optim=lion_32bit", "distributed_type=deepspeed", "zero_stage=3"]
    assert main([*words, "gpu=t4"], simulate=_never) == EXIT_USAGE
    found = capsys.readouterr()
    assert "has no closed-form estimate together with distributed_type=deepspeed" in found.err
    assert "enough" not in found.out


def test_what_has_no_answer_is_not_said_to_be_too_large():
    verdict = card_verdict_of("t4-16gb")
    refused = Choice(value=2, verdict=None, refusal="rules refuse it")
    answer = ChoiceAnswer(
        key="num_processes", spec=SPEC, choices=(Choice(value=1, verdict=verdict), refused), margin=0.0
    )
    text = choice_text(answer, ())
    assert "None of those that have an answer fits." in text
    assert "rules refuse it" in text
    whole = choice_text(replace(answer, choices=answer.choices[:1]), ())
    assert "No number of GPUs is enough." in whole


def test_a_fault_of_another_key_ends_the_search_at_once(capsys, monkeypatch):
    """No length is allowed then, which 4,096 lengths in turn would show as well."""
    asked = []
    monkeypatch.setattr(search, "dearest_spec", lambda *each: asked.append(each) or dearest_spec(*each))
    refused = ("max_completion_length", f"model={MODEL}", "gpu=t4-16gb", "use_liger_kernel=true", "num_generations=3")
    assert main([*refused, "confirm=false"], simulate=_never) == EXIT_USAGE
    assert "num_generations=3" in capsys.readouterr().err
    assert len(asked) == 3


def test_lengths_that_the_prompt_fills_do_not_end_the_search(capsys):
    words = ("max_length", f"model={MODEL}", "recipe=dpo", "tuning=lora", "gpu=h100-80gb", "max_prompt_length=512")
    (answer,) = _solved(capsys, *words)["answers"]
    assert answer["largest"] > 512


FULL = replace(SPEC, gpu="rtx-4090-24gb")


@pytest.mark.parametrize("margin", [0.0, 0.25])
def test_a_full_card_lacks_what_it_would_need(margin):
    """Of the card's 24 GiB the trial needs 30, with its fragments."""

    def simulate(specs: Mapping[int, TrialSpec]) -> Sequence[SimulatedSide]:
        return [SimulatedSide(value=value, status=Status.OOM, needed_bytes=30 * 2**30, message="") for value in specs]

    known = Confirmation("max_completion_length", simulate, margin, looks_ahead=True)
    known.simulate([FULL])
    memory_bytes = KNOWN_GPUS["rtx-4090-24gb"].memory_bytes
    assert known.left_bytes(FULL) == memory_bytes * (1 - margin) - 30 * 2**30


def test_simulations_are_prepared_before_the_estimate(monkeypatch):
    order: list[str] = []
    boundary = KeySearch.boundary

    def estimated(key: KeySearch) -> Boundary[CardVerdict]:
        order.append("estimate")
        return boundary(key)

    monkeypatch.setattr(KeySearch, "boundary", estimated)
    monkeypatch.setattr("profiler.execution.begin_warming", lambda _: order.append("begin"))
    monkeypatch.setattr("profiler.execution.records_of", lambda specs: [None for _ in specs])
    assert main(ASKED) == EXIT_OK
    assert order == ["begin", "estimate"]
    order.clear()
    assert main([*ASKED, "confirm=false"]) == EXIT_OK
    assert order == ["estimate"]
