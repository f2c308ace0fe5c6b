"""Cards of an estimate: any size, all of them, and their prices."""

import json
from pathlib import Path

import pytest

from profiler.domain.cards.gpu import KNOWN_GPUS
from profiler.domain.errors import EXIT_ANSWER_IS_NO, EXIT_OK, EXIT_USAGE
from profiler.estimate.main import answer, main
from profiler.solve.main import main as solve
from profiler.sweep.main import main as sweep
from profiler.training.data.source_data import build_tokenizer

LARGE = ["model=qwen2.5-7b", "tuning=lora"]
EXAMPLE = Path(__file__).parents[2] / "examples" / "prices" / "example.csv"


def _prices(tmp_path, text):
    path = tmp_path / "prices.csv"
    path.write_text(text)
    return f"prices={path}"


def _gpus(*words):
    return json.loads(answer([*LARGE, *words, "format=json"]))["gpus"]


@pytest.mark.parametrize("words", [["gpu=80GiB@9.0"], ["gpu_memory_gib=80", "compute_capability=9.0"]])
def test_a_card_of_any_size_has_a_verdict(words):
    text = " ".join(answer([*LARGE, *words]).split())
    assert "Fits: " in text and "of the 80.0 GiB of 80GiB@9.0" in text


def test_the_capability_of_a_size_is_stated_as_an_assumption():
    said = " ".join(answer([*LARGE, "gpu=24GiB"]).split())
    assert "Assumed: compute_capability=8.9 (of rtx-4090-24gb, the nearest" in said
    assert "Assumed" not in answer([*LARGE, "gpu=24GiB@8.6"])


VLLM = ["model=llama-3.1-8b", "use_vllm=true", "tuning=lora"]


def _verdict(*words):
    cards = json.loads(answer([*VLLM, *words, "format=json"]))["gpus"]
    return next((card["verdict"], card["reason"]) for card in cards if f"gpu={card['gpu']}" in words)


def test_an_engine_that_would_not_start_is_the_verdict():
    verdict, reason = _verdict("gpu=h100-80gb")
    assert verdict == "vLLM does not start"
    assert reason.startswith("vLLM does not start: vllm_gpu_memory_utilization=0.3 of h100-80gb is 23.7 GiB")
    assert reason.endswith("; use vllm_max_model_length=1042.")
    assert reason in " ".join(answer([*VLLM, "gpu=h100-80gb"]).split())
    for enough in ("vllm_max_model_length=1042", "vllm_gpu_memory_utilization=0.5"):
        assert _verdict("gpu=h100-80gb", enough) == ("fits", "")


def test_an_engine_that_does_not_start_names_the_part_it_needs():
    words = ("gpu=a100-40gb", "max_completion_length=4096")
    _, reason = _verdict(*words)
    settings = "vllm_gpu_memory_utilization=0.41 and vllm_max_model_length=4352"
    # Weights, gradients and optimizer states of 7B do not fit 40 GB: to use the settings would be no advice.
    assert f"; with {settings} it starts, but the job then needs " in reason
    given = ("vllm_max_model_length=4352", "vllm_gpu_memory_utilization=0.41")
    assert _verdict(*words, *given)[0] != "vLLM does not start"
    assert _verdict(*words, given[0], "vllm_gpu_memory_utilization=0.4")[0] == "vLLM does not start"
    assert _verdict("gpu=rtx-4070-12gb")[1].endswith("; no part of the card is enough.")


@pytest.mark.parametrize("words", [["gpu=a100-40gb"], ["gpu=any"], ["gpu=a100-40gb", "num_generations=4,8"]])
def test_an_engine_that_would_not_start_is_no(words, capsys):
    code = main([*VLLM, *words, "max_completion_length=4096", "fail_if=does_not_fit"])
    # Other cards of gpu=any start the engine, so one fits.
    assert code == (EXIT_OK if words == ["gpu=any"] else EXIT_ANSWER_IS_NO)
    assert "vLLM does not start" in capsys.readouterr().out


def test_nothing_fits_where_the_engine_does_not_start(capsys):
    assert solve(["max_completion_length", *VLLM, "gpu=a100-40gb", "confirm=false", "fail_if=does_not_fit"]) == 4
    said = " ".join(capsys.readouterr().out.split())
    assert "none fits" in said and "vLLM does not start: vllm_gpu_memory_utilization=0.3 of a100-40gb" in said
    assert solve(["gpu", *VLLM]) == EXIT_OK
    assert "a100-40gb vLLM does not start" in " ".join(capsys.readouterr().out.split())


def test_vllm_takes_its_part_of_a_stated_size():
    found = json.loads(answer(["model=tiny", "use_vllm=true", "gpu=10GiB@8.0", "format=json"]))
    assert found["trial"]["gpu"] == "10GiB@8.0"


def test_any_lists_every_card_from_small_to_large():
    gpus = _gpus("gpu=any")
    assert {each["gpu"] for each in gpus} == set(KNOWN_GPUS)
    sizes = [each["memory_bytes"] for each in gpus]
    assert sizes == sorted(sizes)
    text = answer([*LARGE, "gpu=any"])
    assert max(map(len, text.splitlines())) <= 80
    assert "missing" in text and "left" in text


def test_any_is_an_axis_of_a_grid():
    assert answer(["model=tiny", "gpu=any", "num_generations=2,4"]).count("h100-80gb") == 2


def test_the_cheapest_card_that_fits_is_first(tmp_path):
    text = "gpu,price_per_hour,currency,source,date\nh100,3,EUR,s,2026\na100-80gb,2,EUR,s,2026\nt4,0.1,EUR,s,2026\n"
    names = [each["gpu"] for each in _gpus(_prices(tmp_path, text))]
    assert names[:2] == ["a100-80gb", "h100-80gb"]
    assert names.index("t4-16gb") > names.index("b200-180gb")  # it is the cheapest, and too small
    listed = answer([*LARGE, "gpu=any", _prices(tmp_path, text)])
    assert "2.00 EUR/h" in listed and "no price" in listed and "Prices, per card: s, 2026." in listed


@pytest.mark.parametrize("offers", [(3, 2.5), (2.5, 3)])
def test_of_two_offers_for_a_card_the_lower_one_counts(tmp_path, offers):
    text = "gpu,price_per_hour\n" + "".join(f"h100,{price}\n" for price in offers)
    (card,) = [each for each in _gpus(_prices(tmp_path, text)) if each["gpu"] == "h100-80gb"]
    assert card["price_per_hour"] == 2.5


def test_the_example_is_marked_as_made_up():
    text = EXAMPLE.read_text()
    assert "made up" in text.splitlines()[0]
    assert _gpus(f"prices={EXAMPLE}")[0]["price_source"] == "made up as an example"


def test_cards_that_are_unknown_are_named(tmp_path, capsys):
    assert main([*LARGE, _prices(tmp_path, "gpu,price_per_hour\nmi300x,1\nh100,2\n")]) == EXIT_OK
    assert "Ignored, because no such card is known: mi300x." in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "has no column gpu and no column price_per_hour"),
        ("gpu,price\nh100,1\n", "has no column price_per_hour; the columns are gpu, price_per_hour"),
        ("gpu,price_per_hour\nh100,cheap\n", "has a price_per_hour of 'cheap', which must be a number above 0"),
        ("gpu,price_per_hour\nh100,nan\n", "must be a number above 0"),
        ("gpu,price_per_hour\nh100\n", "must be a number above 0"),
        ("gpu,price_per_hour,currency\nh100,1,USD\na100-80gb,1,EUR\n", "has prices in EUR and in USD"),
        ('gpu,price_per_hour\n"h100,1\n', "is not valid CSV"),
    ],
)
def test_a_file_without_prices_is_a_fault(tmp_path, capsys, text, said):
    assert main([*LARGE, _prices(tmp_path, text)]) == EXIT_USAGE
    (line,) = capsys.readouterr().err.splitlines()
    assert said in line


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["prices=nowhere.csv"], "prices=nowhere.csv: cannot be read"),
        (["prices=nowhere.csv", "gpu=h100"], "needs gpu=any, because it compares cards"),
        (["compute_capability=8.6"], "needs gpu_memory_gib"),
        (["gpu_memory_gib=24", "gpu=h100"], "cannot be combined with gpu"),
        (["gpu_memory_gib=many"], "gpu_memory_gib=many: must be a number of at least 0"),
        (["gpu_memory_gib=24", "compute_capability=old"], "compute_capability=old: must be a number such as 8.6"),
    ],
)
def test_words_that_do_not_go_together_are_a_fault(capsys, words, said):
    assert main([*LARGE, *words]) == EXIT_USAGE
    (line,) = capsys.readouterr().err.splitlines()
    assert said in line


def test_a_sweep_takes_names_only(capsys):
    words = ["+grid=lora_vs_full", "backend=simulated", "model=tiny", "gpu=24GiB", "dry_run=true"]
    assert sweep(words) == EXIT_USAGE
    assert "gpu=24GiB: a sweep does not run trials on a card that has a size only yet" in capsys.readouterr().err


def test_solve_takes_a_size_and_simulates_nothing_on_it(capsys):
    assert solve(["max_completion_length", "model=tiny", "gpu=1GiB"]) == EXIT_OK
    said = capsys.readouterr()
    assert "on 1GiB" in said.out
    assert "Not simulated, because only an estimate knows gpu yet." in said.err
    assert solve(["max_completion_length", "model=tiny", "gpu=any"]) == EXIT_USAGE


@pytest.mark.parametrize(
    ("word", "start"),
    [
        ("backend=gpu", "backend=gpu: must be one of auto, cuda"),
        ("packing=true", "packing=true: is unknown. --help lists the "),
        ("modle=tiny", "modle=tiny: is unknown. Did you mean 'model'?"),
        ("batch_size=4", "batch_size=4: is unknown. Did you mean 'per_device_train_batch_size'?"),
        ("gpu=24gb", "gpu=24gb: names no card. Cards of 24 GB: "),
    ],
)
def test_a_hint_is_first_and_close(capsys, word, start):
    assert main(["model=tiny", word]) == EXIT_USAGE
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(start)
    assert len(line) < 1000


def test_every_row_of_a_long_file_counts(tmp_path):
    """The cheapest price of an export of 30,000 rows may be in its last one."""
    rows = ["gpu,price_per_hour", *["h100,3.5"] * 30_000, "h100,1.25", "b200,2"]
    found = {each["gpu"]: each.get("price_per_hour") for each in _gpus(_prices(tmp_path, "\n".join(rows)))}
    assert (found["h100-80gb"], found["b200-180gb"]) == (1.25, 2)


@pytest.mark.parametrize(("gpu", "is_enough"), [("b300-288gb", True), ("a100-40gb", False)])
def test_reserved_memory_beyond_the_card_is_explained(gpu, is_enough):
    text = " ".join(answer([*LARGE, "max_completion_length=4096", "num_generations=16", f"gpu={gpu}"]).split())
    assert "; reserved" in text
    assert ("where there is room (a full card gives its cache back before it runs out)" in text) is not is_enough


def test_gpus_that_share_an_engine_are_named():
    words = ("model=qwen2.5-32b", "tuning=qlora", "use_vllm=true", "num_processes=4", "gpu=a100-80gb")
    # In bfloat16 the engine has 61 GiB of weights, and the job 4-bit weights next to them.
    _, reason = _verdict(*words)
    settings = ("vllm_tensor_parallel_size=2", "vllm_gpu_memory_utilization=0.4", "vllm_max_model_length=1042")
    assert reason.endswith(f"; use {settings[0]}, {settings[1]} and {settings[2]}.")
    assert _verdict(*words, *settings) == ("fits", "")
    assert _verdict(*words, settings[0], "vllm_gpu_memory_utilization=0.39", settings[2])[0] == "vLLM does not start"
    assert _verdict(*words, "gpu=rtx-3060-12gb")[1].endswith(
        "no part of the card is enough, also with vllm_tensor_parallel_size."
    )


SFT = ("model=qwen2.5-7b", "tuning=lora", "recipe=sft", "max_length=4096", "gpu=h100-80gb")
GRPO = ("model=qwen2.5-7b", "tuning=lora", "gpu=h100-80gb", "max_prompt_length=256", "max_completion_length=900")


@pytest.mark.parametrize(
    ("job", "shorter", "row"),
    [
        (GRPO, ("max_prompt_length=50", "max_completion_length=700"), "50 + 700"),
        (SFT, ("max_length=750",), "750"),
    ],
)
def test_lengths_of_a_file_say_what_most_steps_need(tmp_path, job, shorter, row):
    path = tmp_path / "lengths.jsonl"
    path.write_text('{"prompt": 50, "completion": 700}\n' * 3)
    typical, rare = json.loads(answer([*job, f"lengths={path}", "format=json"]))["by_lengths"]
    assert (typical["part_of_steps"], rare["part_of_steps"]) == (0.5, 0.999)
    (card,) = [each for each in _of(*job, *shorter) if each["gpu"] == "h100-80gb"]
    assert typical["needed_bytes"] == rare["needed_bytes"] == card["needed_bytes"]
    text = " ".join(answer([*job, f"lengths={path}"]).split())
    assert f"50 % of the steps need at most {card['needed_bytes'] / 2**30:.1f} GiB (rows of {row} tokens)" in text
    longest = {SFT: "4,096", GRPO: "1,156"}[job]
    assert f"The answer above is for the longest rows, of {longest} tokens." in text
    assert "by_lengths" not in json.loads(answer([*job, "format=json"]))


def test_lengths_are_counted_in_texts_by_a_tokenizer(tmp_path):
    tokenizer, data = tmp_path / "tokenizer", tmp_path / "rows.jsonl"
    build_tokenizer().save_pretrained(tokenizer)
    texts = {"prompt": "word " * 50, "completion": "word " * 700}
    data.write_text((json.dumps(texts) + "\n") * 3)
    (prompt, completion) = (len(build_tokenizer()(text)["input_ids"]) for text in texts.values())
    numbers = tmp_path / "numbers.jsonl"
    numbers.write_text(json.dumps({"prompt": prompt, "completion": completion}) + "\n")
    counted = answer([*GRPO, f"lengths={data}", f"tokenizer={tokenizer}", "format=json"])
    assert (
        json.loads(counted)["by_lengths"]
        == json.loads(answer([*GRPO, f"lengths={numbers}", "format=json"]))["by_lengths"]
    )


def _of(*words):
    return json.loads(answer([*words, "format=json"]))["gpus"]


@pytest.mark.parametrize(
    ("command", "words", "says"),
    [
        (main, [*GRPO, "lengths=missing.txt"], "lengths=missing.txt: cannot be read (No such file or directory)"),
        (
            main,
            [*SFT, "num_processes=2", "distributed_type=fsdp", "lengths={file}"],
            "distributed_type=fsdp: has no forecast, because no simulation shards a model;",
        ),
        (main, ["model=qwen2.5-7b", "gpu=any", "lengths={file}"], "is a file, and its lengths are for the estimate of"),
        (solve, ["gpu", "model=qwen2.5-7b", "lengths={file}"], "is a file, and its lengths are for the estimate of"),
        (main, [*GRPO, "lengths={prompts}"], "has prompts and no completions"),
        (main, [*GRPO, "lengths=raggd"], "lengths=raggd: must be one of"),
        (main, [*GRPO, "lengths={texts}"], "which is not a number of tokens. With tokenizer=FOLDER the texts"),
        (main, [*GRPO, "lengths={texts}", "tokenizer=x"], "tokenizer=x: is no folder with a tokenizer_config.json"),
        (main, [*GRPO, "tokenizer=x"], "tokenizer=x: counts the tokens of lengths=FILE, and there is none"),
        (main, [*GRPO, "lengths=./"], "is a folder, and counting the tokens of a data set needs a tokenizer. Add"),
        (solve, ["gpu", "model=qwen2.5-7b", "tokenizer=x"], "tokenizer=x: is an option of python -m profiler.estimate"),
    ],
)
def test_bad_files_of_lengths_are_one_sentence(tmp_path, monkeypatch, capsys, command, words, says):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rows.txt").write_text("10 20 30")
    (tmp_path / "prompts.jsonl").write_text('{"prompt": 3}')
    (tmp_path / "texts.jsonl").write_text('{"prompt": "three", "completion": "four"}')
    named = {"file": "rows.txt", "prompts": "prompts.jsonl", "texts": "texts.jsonl"}
    assert command([word.format(**named) for word in words]) == EXIT_USAGE
    assert says in " ".join(capsys.readouterr().err.split())
