import json
import re
import subprocess
import sys

import pytest
from matrix import with_further

from profiler.analytical.explanation.explained import Fit, all_cards
from profiler.config.models.lookup import builtin_architecture
from profiler.config.trials.specification import parse_point
from profiler.domain.cards.gpu import KNOWN_GPUS
from profiler.domain.errors import EXIT_OK, EXIT_USAGE, UsageError
from profiler.domain.trials.trial import SPEC_KEYS, Tuning
from profiler.estimate.command import read_command
from profiler.estimate.main import answer, main
from profiler.rendering.memory_words import cards_in_one_line

_7B = ["model=qwen2.5-7b", "tuning=lora", "gpu=h100-80gb"]


def test_the_table_fits_a_terminal_and_has_the_main_facts():
    text = answer(_7B)

    assert max(map(len, text.splitlines())) <= 80
    assert "40.4e6 x 4 B, rank 16" in text
    assert "7.62e9 parameters x 2 B" in text
    assert "<- the peak" in text


def test_verdict_peak_assumptions_and_cards_come_in_this_order(tmp_path):
    recipe = tmp_path / "grpo.yaml"
    recipe.write_text("model_name_or_path: Qwen/Qwen2.5-7B-Instruct\nbf16: true\n")
    text = answer([f"config={recipe}"])
    order = ["Does not fit: ", "<- the peak", "Peak allocated ", "Other phases: ", "Assumed: ", "details=true"]
    assert [text.index(each) for each in order] == sorted(text.index(each) for each in order)
    assert text.startswith("Does not fit: ")
    assert "That is with trl 0.14, the dearest of the releases" in " ".join(text.split())


def test_details_show_every_phase_and_every_card():
    short, whole = answer(_7B), answer([*_7B, "details=true"])
    assert "\nrollout " not in short
    assert "\nrollout " in whole
    assert "Fits from 24 GB on; does not fit up to 16 GB; no kernel on t4-16gb, v100-16gb" in short
    assert "does not fit: rtx-4070-12gb, rtx-3060-12gb" in whole
    assert "no kernel: t4-16gb" in whole
    assert whole.startswith(short.splitlines()[0])


@pytest.mark.parametrize("table", [["gpu=any"], ["num_generations=4,8"]])
def test_a_table_has_no_details(table):
    with pytest.raises(UsageError, match="details=true: is for the estimate of one trial"):
        answer(["model=qwen2.5-7b", "details=true", *table])


def _fit_in(line, gpu):
    """Return what the sentence about all cards says of one."""
    for part in line.rstrip(".").split("; "):
        fit = next(each for each in Fit if part.lower().startswith(each.value.lower()))
        where = part[len(fit.value) + 1 :]
        from_gb, up_to_gb = re.search(r"from (\d+) GB on", where), re.search(r"up to (\d+) GB", where)
        named = gpu.name in re.split(r"[ ,]+", where)
        if named or (from_gb and gpu.size_gb >= int(from_gb[1])) or (up_to_gb and gpu.size_gb <= int(up_to_gb[1])):
            yield fit


ON_CARDS = [
    (model, tuning)
    for model in ("qwen2.5-0.5b", "qwen2.5-3b", "qwen2.5-7b", "qwen2.5-14b", "llama-3.1-70b")
    for tuning in Tuning
]


@pytest.mark.parametrize("job", with_further(ON_CARDS, ON_CARDS[::2]), ids=str)
def test_the_line_about_cards_has_the_verdict_of_each(job):
    model, tuning = job
    architecture = builtin_architecture(model)
    for length in (64, 256, 600, 1024, 2048, 4096):
        values = {"backend": "simulated", "model": model, "tuning": tuning.value, "max_completion_length": length}
        spec = parse_point(values, architecture_of=builtin_architecture)
        cards = all_cards(spec, architecture)
        line = cards_in_one_line(cards)
        found = {card.gpu.name: set(_fit_in(line, card.gpu)) for card in cards}
        # A card without a kernel is also named where its size is.
        assert all(card.fit in found[card.gpu.name] for card in cards), line
        assert all(len(fits) == 1 for name, fits in found.items() if KNOWN_GPUS[name].chip.has_flash_attention), line


@pytest.mark.parametrize(
    "words",
    [
        ["model=qwen2.5-14b", "gradient_checkpointing=false", "beta=1e-3", "logprobs=full"],
        ["model=llama-3.1-8b", "tuning=qlora", "optim=paged_adamw_8bit", "logprobs=sliced"],
        ["model=qwen3-8b", "optim=adamw_torch", "dtype=float32", "steps_per_generation=3", "num_generations=2"],
        ["model=qwen2.5-0.5b", "optim=adafactor", "attn_implementation=flash_attention_2", "lengths=forced"],
    ],
)
def test_no_line_is_longer_than_a_terminal(words):
    assert max(map(len, answer(words).splitlines())) <= 80


def test_json_sums_up():
    found = json.loads(answer([*_7B, "format=json"]))

    assert found["origin"] == "estimated"
    assert [gpu["gpu"] for gpu in found["gpus"]] == sorted(KNOWN_GPUS, key=lambda name: KNOWN_GPUS[name].memory_bytes)
    for phase in found["phases"]:
        assert sum(part["bytes"] for part in phase["categories"]) == phase["peak_allocated_bytes"]
        assert all(part["formula"] for part in phase["categories"])
    assert found["peak_allocated_bytes"] == max(phase["peak_allocated_bytes"] for phase in found["phases"])
    assert found["peak_reserved_bytes"] >= found["peak_allocated_bytes"]


def test_every_key_of_a_trial_is_accepted():
    shown = json.loads(answer([*_7B, "format=json"]))["trial"]
    words = [f"{key}={_as_typed(shown[key])}" for key in SPEC_KEYS if shown[key] not in (None, "")]

    assert json.loads(answer([*words, "format=json"]))["trial"] == shown


def _as_typed(value):
    return json.dumps(value) if not isinstance(value, str) else value


def test_all_faults_are_printed_with_one_sentence_each(capsys):
    words = ["modle=qwen2.5-7b", "model=qwen2.5-7b", "tuning=lorra", "num_generations=1", "jobs=3", "format=yaml", "gc"]

    assert main(words) == EXIT_USAGE
    lines = capsys.readouterr().err.splitlines()
    assert [line.partition("=")[0] for line in lines] == [
        "modle",
        "jobs",
        "argument",
        "format",
        "tuning",
        "num_generations",
    ]
    assert "Did you mean 'model'?" in lines[0]
    assert "Did you mean 'lora'?" in lines[4]


def test_a_value_that_cannot_be_read_and_a_missing_model(capsys):
    assert main(["lora_target_modules=[q_proj"]) == EXIT_USAGE
    said = capsys.readouterr().err
    assert "lora_target_modules=[q_proj: cannot be read as a value" in said
    assert "model=null: must be a built-in name" in said


def test_help_and_a_repeated_key(capsys):
    assert main(["--help"]) == EXIT_OK
    assert "Several values of a key" in capsys.readouterr().out
    assert read_command(["beta=1", "beta=0"]).keys == {"beta": 0}


def test_a_model_by_its_config_json(tmp_path):
    config = {
        "model_type": "llama",
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "vocab_size": 1000,
    }
    (tmp_path / "config.json").write_text(json.dumps(config))

    # 2 x 1000 x 64 embeddings and head, 2 layers of 4 x 64 x 64 + 3 x 64 x 128 + 2 x 64, and a norm of 64
    assert "210e3 parameters x 2 B" in answer([f"model={tmp_path}"])


def test_expandable_segments_leave_no_segments_behind():
    words = [*_7B, "format=json"]
    found = json.loads(answer(words))
    expandable = json.loads(answer([*words, "alloc_conf=expandable_segments:True"]))

    allocated, reserved = expandable["peak_allocated_bytes"], expandable["peak_reserved_bytes"]
    # Pages of 20 MiB are in part free.
    assert allocated <= reserved < 1.01 * allocated < found["peak_reserved_bytes"]


def test_a_card_without_the_kernel_has_a_verdict_of_its_own():
    found = json.loads(answer([*_7B, "attn_implementation=flash_attention_2", "format=json"]))

    assert {gpu["gpu"] for gpu in found["gpus"] if gpu["verdict"] == "no kernel"} == {
        "t4-16gb",
        "v100-16gb",
        "v100-32gb",
    }


def test_it_imports_no_torch_and_a_closed_pipe_is_no_error():
    script = (
        "import sys; from profiler.estimate.main import main; code = main(sys.argv[1:]); "
        "sys.exit(code or ('torch' in sys.modules) * 9 or ('hydra' in sys.modules) * 8)"
    )
    whole = subprocess.run([sys.executable, "-c", script, *_7B], capture_output=True, text=True, check=False)
    with subprocess.Popen(
        [sys.executable, "-m", "profiler.estimate", *_7B], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as cut:
        cut.stdout.close()
        errors = cut.stderr.read()

    assert (whole.returncode, whole.stderr) == (0, "")
    assert errors == b""
