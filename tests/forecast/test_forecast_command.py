"""`python -m profiler.forecast`: its words, faults, answer, files, levers and going on, with a fake engine."""

import json
import os
import re
import select
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from fake_engine import FakeEngine

from profiler.domain.errors import EXIT_ANSWER_IS_NO, EXIT_OK, EXIT_SIGNAL_BASE, EXIT_USAGE, ProfilerError
from profiler.domain.memory import GIB, MIB
from profiler.domain.runs.forecast import Learnt, line_object
from profiler.forecast.main import main, run_engine
from profiler.rendering.figures import timeline
from profiler.storage.records import versioned

SFT = ["recipe=sft", "max_length=512"]
JOB = ["model=qwen2.5-7b", "tuning=lora", "gpu=4090", "num_generations=4", "max_completion_length=3000"]
LAWS = ["prompts=lognormal(180,0.6)", "completions=lognormal(300,0.45)"]
SFT = ["model=qwen2.5-7b", "recipe=sft", "tuning=lora", "gpu=4090", "max_length=1024"]
WORDS = [*JOB, *LAWS, "steps=60", "seeds=4"]


@pytest.fixture(autouse=True)
def _folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def never(*_):
    raise AssertionError("nothing may start")


def answer(capsys, *words, engine=None, code=EXIT_OK):
    assert main([*words, "format=json"], engine=engine or FakeEngine()) == code
    return json.loads(capsys.readouterr().out)


def test_a_run_that_dies_says_when_and_of_what(capsys, tmp_path):
    engine = FakeEngine(base_bytes=13 * GIB)
    found = answer(capsys, *WORDS, engine=engine)
    assert found["origin"] == "simulated"
    assert 0 < found["died"] <= 4 and found["seeds"] == 4
    first = found["deaths"][0]
    assert first["rows"] == 4 and first["row_tokens"] > 1500 and 1 <= first["step"] <= 60
    assert found["died_by_step"][-1][1] == found["died"]
    assert main([*WORDS, "fail_if=dies"], engine=engine) == EXIT_ANSWER_IS_NO
    said = " ".join(capsys.readouterr().out.split())
    assert f"It dies in step {first['step']}" in said
    assert f"a micro-batch of 4 rows padded to the longest, {first['row_tokens']:,} tokens" in said
    assert "The estimate's worst case" in said and "Simulated:" in said
    (folder,) = (tmp_path / "results" / "forecast").iterdir()
    assert len(engine.requests) == 1, "the second answer is that of the first"
    assert pq.read_table(folder / "steps.parquet").num_rows == engine.lines - 1 - found["died"]
    page = (folder / "report.html").read_text()
    assert "qwen2.5-7b on rtx-4090-24gb: 60 steps" in page and "<figure" in page
    assert (folder / "figures" / "steps.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(("base_bytes", "all_die"), [(22 * GIB, True), (15 * GIB, False), (6 * GIB, False)])
def test_the_figure_ends_where_all_seeds_died(capsys, monkeypatch, base_bytes, all_die):
    figures = []
    monkeypatch.setattr(timeline, "legend_below", lambda figure, **_: figures.append(figure))
    deaths = answer(capsys, *WORDS, engine=FakeEngine(base_bytes=base_bytes))["deaths"]
    (axes,) = figures[0].axes
    if all_die:
        last = max(death["step"] for death in deaths)
        assert len(deaths) == 4 and axes.get_xlim() == (0, last * 1.2 + 1)
        assert axes.get_xlabel() == f"optimizer step, of 60 ({last} with the seed that comes furthest)"
    else:
        assert axes.get_xlim() == (0, 60) and axes.get_xlabel() == "optimizer step"


def test_a_run_that_survives_states_the_interval(capsys):
    engine = FakeEngine(base_bytes=6 * GIB)
    checkpoints = ["save_strategy=steps", "save_steps=9"]
    assert main([*WORDS, *checkpoints, "seeds=10", "fail_if=dies"], engine=engine) == EXIT_OK
    said = " ".join(capsys.readouterr().out.split())
    assert (
        "survives 60 steps with each of 10 seeds; the probability to run out of memory is at most 28 % (95 %, Wilson)"
        in said
    )
    (request,) = engine.requests
    assert (request.steps, request.settings, len(request.draws)) == (60, ("",), 10)
    # 4 rows in 4 micro-batches per step, and one prompt per 4 completions.
    assert (len(request.draws[0].completions), len(request.draws[0].prompts)) == (60 * 16, 60 * 4)
    assert request.spec["gpu"] == "rtx-4090-24gb" and request.model_config["hidden_size"] == 3584


def test_each_gpu_of_a_seed_has_a_run_of_its_own(capsys, tmp_path):
    engine = FakeEngine(base_bytes=13 * GIB)
    words = [*WORDS, "num_processes=2", "num_generations=8", "per_device_train_batch_size=4"]
    found = answer(capsys, *words, engine=engine)
    (request,) = engine.requests
    assert [draw.seed for draw in request.draws] == [*range(8)]
    assert {(len(draw.completions), len(draw.prompts)) for draw in request.draws} == {(60 * 16, 60 * 2)}
    assert (found["seeds"], found["lengths"][0]["rows"]) == (4, 60 * 32)
    first = found["deaths"][0]
    assert main(words, engine=engine) == EXIT_OK
    said = " ".join(capsys.readouterr().out.split())
    assert f"The first (seed {first['seed']}, GPU {first['process'] + 1} of 2): a micro-batch of 4 rows" in said
    assert "Each of the 2 GPUs of a seed has its own rows" in said
    (table,) = tmp_path.glob("results/forecast/*/steps.parquet")
    rows = pq.read_table(table)
    assert (set(rows["seed"].to_pylist()), set(rows["process"].to_pylist())) == ({0, 1, 2, 3}, {0, 1})


def test_a_reference_runs_over_the_whole_data_set(capsys, tmp_path):
    lines = [{"prompt": 20 + row, "chosen": 30 + row, "rejected": 900} for row in range(40)]
    (tmp_path / "lengths.jsonl").write_text("\n".join(map(json.dumps, lines)))
    engine, pairs = FakeEngine(), ["recipe=dpo", "max_length=512", "precompute_ref_log_probs=true", *JOB[:3]]
    known = answer(capsys, *pairs, "lengths=lengths.jsonl", "steps=5", "seeds=1", engine=engine)
    prompts, completions = engine.requests[0].draws[0].reference
    assert prompts == tuple(range(20, 60))
    assert completions[:4] == (30, 492, 31, 491)
    assert "Before the first step the reference runs over 40 rows, 4 at once." in known["notes"]
    sampled = answer(capsys, *pairs, "completions=300", "steps=5", "seeds=1", engine=engine)
    assert engine.requests[1].draws[0].reference is None
    said = "Before the first step the reference runs over 80 rows (assumed: those of the run, as one epoch), 4 at once."
    assert said in sampled["notes"]


def test_a_killed_forecast_goes_on(capsys, tmp_path):
    assert main(WORDS, engine=FakeEngine(dies_after=70, base_bytes=6 * GIB)) == EXIT_SIGNAL_BASE + 2
    assert "The same command goes on." in capsys.readouterr().err
    (path,) = tmp_path.glob("results/forecast/*/answer.jsonl")
    assert path.read_text().count("\n") == 70 and not path.read_text().endswith("\n")
    engine = FakeEngine(base_bytes=6 * GIB)
    found = answer(capsys, *WORDS, engine=engine)
    assert engine.lines == 1 + 4 * 60 - 70
    assert (found["died"], found["kept"][-1]["step"]) == (0, 60)
    whole = [json.loads(line) for line in path.read_text().splitlines()]
    assert len({(each.get("seed"), each.get("step")) for each in whole}) == len(whole) == 1 + 4 * 60


def test_other_versions_have_another_forecast(capsys, monkeypatch):
    engine = FakeEngine(base_bytes=6 * GIB)
    answer(capsys, *WORDS, "steps=2", "seeds=1", engine=engine)
    versions = versioned.installed_versions()
    monkeypatch.setattr(versioned, "installed_versions", lambda: replace(versions, torch="9.9"))
    answer(capsys, *WORDS, "steps=2", "seeds=1", engine=engine)
    assert len(engine.requests) == 2


@pytest.mark.parametrize("whole", [None, "The steps cannot be written out: planted."])
def test_progress_says_why_each_step_is_simulated(capsys, monkeypatch, whole):
    monkeypatch.setattr("profiler.forecast.main._SAY_AFTER_S", 0.0)

    def engine(request, path, tick):
        learnt = Learnt(shapes=0, events_per_step=0, layers_run=None, whole=whole)
        path.write_text(json.dumps(line_object(learnt)) + "\n")
        tick()

    assert main(WORDS, engine=engine) == ProfilerError.exit_code
    said = capsys.readouterr().err.splitlines()[0]
    reason = f". {whole} Each is simulated." if whole else ""
    assert said.endswith(f"0 of at most 240 steps of 4 runs{reason}")


def test_progress_has_the_time_of_a_run_and_what_is_left(capsys, monkeypatch):
    monkeypatch.setattr("profiler.forecast.main._SAY_AFTER_S", 0.0)
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    now = [100.0]

    def engine(request, path, tick):
        # By hand, 4 runs of 60 steps: 20 steps in 2 s are 6 s per run, and 200 of 240 are left. The first are slow.
        learnt = Learnt(shapes=0, events_per_step=0, layers_run=None, whole=None)
        for lines in (json.dumps(line_object(learnt)) + "\n{}\n", "{}\n" * 19, "{}\n" * 20):
            with path.open("a") as file:
                file.write(lines)
            tick()
            now[0] += 2.0

    assert main(WORDS, engine=engine) == ProfilerError.exit_code
    said = capsys.readouterr().err.splitlines()[2]
    assert said.endswith("40 of at most 240 steps of 4 runs, one run every 6 s, at most 20 s left")


def test_an_engine_that_leaves_out_runs_is_a_sentence(capsys):
    def engine(request, path, tick):
        path.write_text("")

    assert main(WORDS, engine=engine) == ProfilerError.exit_code
    assert "4 of its runs are missing" in capsys.readouterr().err


def test_a_process_that_fails_is_a_sentence(tmp_path, monkeypatch):
    monkeypatch.setattr("profiler.forecast.main.ENGINE", "profiler.no_such_module")
    with pytest.raises(ProfilerError, match=r"ended early: .*no_such_module"):
        run_engine(tmp_path / "request.json", tmp_path / "answer.jsonl", lambda: None)


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel sends a signal when a pipe is closed")
def test_no_engine_outlives_a_command_that_is_killed(tmp_path):
    """It would go on to write to the answer that the next command continues. Here it waits for its request."""
    request = tmp_path / "request.json"
    os.mkfifo(request)
    program = "import sys; from pathlib import Path; from profiler.forecast.main import run_engine; "
    program += "run_engine(Path(sys.argv[1]), Path(sys.argv[2]), lambda: None)"
    with subprocess.Popen([sys.executable, "-c", program, request, tmp_path / "answer.jsonl"]) as command:
        writer = None
        while writer is None and command.poll() is None:
            with suppress(OSError):  # nobody reads yet
                writer = os.open(request, os.O_WRONLY | os.O_NONBLOCK)
            time.sleep(0.1)
        assert writer is not None, (tmp_path / "errors.txt").read_text()
        command.kill()
    reader = select.poll()
    reader.register(writer, 0)
    assert reader.poll(60_000) == [(writer, select.POLLERR)], "the engine still reads"
    os.close(writer)


def test_each_lever_has_its_own_forecast(capsys):
    engine = FakeEngine(base_bytes=13 * GIB)
    found = answer(capsys, *WORDS, "levers=true", engine=engine)
    levers = {each["change"]: each for each in found["levers"]}
    assert set(levers) == {
        "expandable_segments:True", "garbage_collection_threshold:0.8", "max_split_size_mb:512",
        "max_completion_length=2250", "per_device_train_batch_size=2 (accumulated)", "torch_empty_cache_steps=1",
    }  # fmt: skip
    smaller = levers["per_device_train_batch_size=2 (accumulated)"]
    assert smaller["died"] < found["died"]
    assert smaller["peak_reserved_bytes"] < found["peak_reserved_bytes"]
    assert [len(each.settings) for each in engine.requests] == [4, 1, 1, 1]
    assert (
        len({each.draws[0].completions for each in engine.requests if each.spec["max_completion_length"] == 3000}) == 1
    )
    assert [each["died"] for each in found["levers"]] == sorted(each["died"] for each in found["levers"])


def test_whole_rows_can_be_sorted_by_length(capsys):
    engine, words = FakeEngine(base_bytes=GIB), [*SFT, "completions=uniform(10,900)", "steps=9", "seeds=1"]
    found = answer(capsys, *words, "levers=true", engine=engine)
    assert "train_sampling_strategy=group_by_length" in {each["change"] for each in found["levers"]}
    rows = [each.draws[0].completions for each in engine.requests]
    assert rows[-1][0] == max(rows[0])
    assert sorted(rows[-1]) == sorted(rows[0])
    found = answer(capsys, *words, "levers=true", "train_sampling_strategy=group_by_length", engine=engine)
    assert "train_sampling_strategy=group_by_length" not in {each["change"] for each in found["levers"]}


@pytest.mark.parametrize(
    ("said", "is_grouped", "note"),
    [
        ("train_sampling_strategy: group_by_length", True, ""),
        ("group_by_length: true", True, ""),
        ("group_by_length: false", False, ""),
        ("train_sampling_strategy: random", False, ""),
        ("train_sampling_strategy: sequential", False, "train_sampling_strategy=sequential has no forecast"),
    ],
)
def test_the_order_of_rows_is_that_of_the_file(capsys, tmp_path, said, is_grouped, note):
    (tmp_path / "sft.yaml").write_text(f"model_name_or_path: Qwen/Qwen2.5-7B\nmax_length: 1024\n{said}\n")
    engine = FakeEngine(base_bytes=GIB)
    words = ["config=sft.yaml", "recipe=sft", "gpu=h100", "completions=uniform(10,900)", "steps=9", "seeds=1"]
    found = answer(capsys, *words, engine=engine)
    rows = engine.requests[0].draws[0].completions
    assert (rows[0] == max(rows)) is is_grouped
    assert any(note in each for each in found["notes"])


# ---- lengths ---------------------------------------------------------------------------------------------------------

FILES = {
    "numbers": ("300\n400 500, 600\n", {300, 400, 500, 600}, {256}),
    "list": ("[300, 400]", {300, 400}, {256}),
    "pairs": ('{"prompt": 50, "completion": 300}\n{"prompt": 60, "completion": 400}\n', {300, 400}, {50, 60}),
}


@pytest.mark.parametrize("kind", FILES)
def test_lengths_come_from_a_file(capsys, tmp_path, kind):
    text, completions, prompts = FILES[kind]
    (tmp_path / "lengths.jsonl").write_text(text)
    engine = FakeEngine()
    answer(capsys, *JOB, "lengths=lengths.jsonl", "steps=5", "seeds=1", engine=engine)
    (draw,) = engine.requests[0].draws
    assert (set(draw.completions), set(draw.prompts)) == (completions, prompts)
    answer(capsys, "recipe=sft", *JOB[:3], "lengths=lengths.jsonl", "steps=5", "seeds=1", engine=engine)
    (draw,) = engine.requests[1].draws
    whole = {350, 460} if kind == "pairs" else completions
    assert (set(draw.completions), draw.prompts) == (whole, ())


def test_a_pair_has_two_completions_that_its_maximum_cuts(capsys, tmp_path):
    (tmp_path / "lengths.jsonl").write_text('{"prompt": 50, "chosen": 300, "rejected": 900}\n')
    engine = FakeEngine()
    words = ["recipe=dpo", "max_length=512", *JOB[:3], "lengths=lengths.jsonl", "steps=5", "seeds=1"]
    answer(capsys, *words, engine=engine)
    (draw,) = engine.requests[0].draws
    assert (set(draw.prompts), set(draw.completions)) == ({50}, {300, 462})
    assert len(draw.completions) == 2 * len(draw.prompts)


TEXTS = [{"prompt": "one two", "completion": "three four five"}, {"prompt": "six", "completion": "seven"}]


def test_a_data_set_is_counted_with_its_tokenizer(tmp_path):
    pytest.importorskip("transformers")
    from profiler.training.data.source_data import row_lengths

    class Rows(list):
        column_names = ("prompt", "completion")

        def __getitem__(self, part):
            return {name: [row[name] for row in list(self)[part]] for name in self.column_names}

    tokens = {"prompts": [2, 1], "completions": [3, 1]}
    assert row_lengths(Rows(TEXTS), lambda text: {"input_ids": text.split()}, 10) == tokens


BIG = "7\n" * 1_000_001
PRECOMPUTED = ["recipe=dpo", "max_length=512", "precompute_ref_log_probs=true", "completions=5"]


@pytest.mark.parametrize(
    ("words", "files", "sentence"),
    [
        ([], {}, "completions=none: is missing; say how long rows are"),
        (["completions=0"], {}, "completions=0: must be at least 1"),
        (["completions=long"], {}, "completions=long: must be a number, uniform"),
        (["completions=400", "growth=0"], {}, "growth=0: must be at least 0.01"),
        (["completions=400", "lengths=a"], {"a": "1"}, "says how long completions are, and so does"),
        (["lengths=ragged"], {}, "lengths=ragged: must be a file: a forecast draws its lengths"),
        (["lengths=a"], {}, "lengths=a: cannot be read (No such file or directory)"),
        (["lengths=a"], {"a": "5\n0\n"}, "lengths=a: has in line 2 a length of 0, and a row has 1 to"),
        (["lengths=a"], {"a": "5\nten\n"}, "lengths=a: has in line 2 'ten', which is not a number of tokens"),
        (["lengths=a"], {"a": '{"prompt": "x"}'}, "'x', which is not a number of tokens. With tokenizer=FOLDER"),
        (["lengths=a"], {"a": '{"text": "x"}'}, "lengths=a: has in line 1 neither prompt nor completion"),
        (["lengths=a"], {"a": '{"prompt": 3'}, "lengths=a: has in line 1 no JSON"),
        (["lengths=a"], {"a": ""}, "lengths=a: has no rows"),
        (["lengths=a"], {"a": '{"prompt": 3}'}, "lengths=a: has prompts and no completions"),
        (["lengths=a"], {"a": BIG}, "lengths=a: has 1,000,001 rows, and at most 1,000,000 are read"),
        (["lengths=."], {}, "lengths=.: is a folder, and counting the tokens of a data set needs a tokenizer"),
        (["completions=5", "max_completion_length=40000"], {}, "allows rows of 40,256 tokens, beyond the context of"),
        (["completions=5", "tokenizer=x"], {}, "tokenizer=x: counts the tokens of lengths=FILE, and there is none"),
        (["completions=5", "recipe=sft", "prompts=5"], {}, "prompts=5: has no meaning with recipe=sft"),
        (["completions=5", "gpu=any"], {}, "gpu=any: asks for every card, and a forecast is for one"),
        (["completions=5", "beta=0,1"], {}, "beta=0,1: has several values, and a forecast is for one run"),
        (["completions=5", "eval_steps=5", "per_device_eval_batch_size=6"], {}, "must be a multiple of the 4"),
        (["completions=5", "eval_steps=5", "logprobs=minibatch"], {}, "logprobs=minibatch: has no forecast with"),
        (["completions=5", "eval_steps=5", "max_eval_samples=9999"], {}, "is more than 1,000 batches of"),
        (["completions=5", *SFT, "num_generations_eval=2"], {}, "num_generations_eval=2: has no meaning with recipe"),
        (["completions=5", *SFT, "eval_strategy=epoch"], {}, "eval_strategy=epoch: needs the size of the data set"),
        (["completions=5", *SFT, "eval_steps=5", "max_eval_samples=9000"], {}, "is more than 1,000 batches of"),
        (["completions=5", "save_steps=0"], {}, "save_steps=0: must be"),
        (["completions=5", "save_strategy=step"], {}, "save_strategy=step: must be one of no, steps, epoch, best"),
        (["completions=5", "per_device_eval_batch_size=8"], {}, "per_device_eval_batch_size=8: is of evaluations, and"),
        (["completions=5", "use_dynamic_bsz=true"], {}, "use_dynamic_bsz=true: has no forecast, because it splits"),
        (["completions=5", "num_processes=2", "eval_steps=5"], {}, "num_processes=2: has no forecast with evaluations"),
        (["completions=5", "num_processes=2", "distributed_type=fsdp"], {}, "fsdp: has no forecast, because no sim"),
        ([*PRECOMPUTED, "precompute_ref_batch_size=1"], {}, "=1: makes more than 1,000 batches of 16,000 rows"),
        ([*PRECOMPUTED, "eval_steps=5"], {}, "precompute_ref_log_probs=true: has no forecast with evaluations"),
        (["completions=5", "steps=100001"], {}, "steps=100001: must be at most 100,000"),
        (["completions=5", "steps=100000", "seeds=1000"], {}, "rows with 1000 seeds, and at most 20,000,000"),
        (["completions=5", "fail_if=tight"], {}, "fail_if=tight: must be one of dies"),
        (["log=a"], {"a": "loss 0.3"}, "log=a: is no log of trl or verl"),
        (["log=a"], {"a": "step:1 - train/loss:0.1"}, "log=a: has 1 entries and none with lengths"),
        (["log=a"], {"a": '{"step": 1, "vram/reserved_gib": 3.0}'}, "log=a: has no lengths"),
    ],
)  # fmt: skip
def test_bad_input_is_one_sentence(capsys, tmp_path, words, files, sentence):
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    job = [word for word in JOB if word.partition("=")[0] not in {each.partition("=")[0] for each in words}]
    of_data = {"recipe=sft", "recipe=dpo"} & set(words)
    job = [word for word in job if not of_data or word.startswith(("model", "gpu", "tuning"))]
    assert main([*job, *words], engine=never) == EXIT_USAGE
    said = capsys.readouterr().err
    assert sentence in said and said.count("\n") == 1
    assert not (tmp_path / "results").exists()


def test_a_job_of_verl_and_a_log_alone_are_refused(capsys, tmp_path):
    assert main(["config=verl", "completions=5", "gpu=h100"], engine=never) == EXIT_USAGE
    assert "is a configuration of verl, for which there is only an estimate" in capsys.readouterr().err
    (tmp_path / "log.jsonl").write_text('{"step": 1, "completions/mean_length": 3.0}')
    assert main(["log=log.jsonl", "gpu=h100", "fail_if=dies"], engine=never) == EXIT_USAGE
    assert "says how long rows were, and not what is trained. Add config=FILE or model=NAME." in capsys.readouterr().err


# ---- logs ------------------------------------------------------------------------------------------------------------


def state(path, leak_mib):
    """A trainer_state.json of 60 steps, with the memory of the fake engine and a leak."""
    entries = [
        {
            "step": step, "completions/mean_length": 300.0 + step, "completions/min_length": 50.0,
            "completions/max_length": 800.0 + 4 * step,
            "num_tokens": sum(16 * (500 + each) for each in range(1, step + 1)),
            "vram/allocated_gib/backward": (12 * GIB + 4 * 2 * MIB * (800 + 4 * step) + leak_mib * MIB * step) / GIB,
        }
        for step in range(1, 61)
    ]  # fmt: skip
    path.write_text(json.dumps({"max_steps": 90, "log_history": entries}, indent=1))


@pytest.mark.parametrize(("leak_mib", "cause"), [(0, "lengths"), (30, "leak")])
def test_a_log_says_whether_lengths_explain_its_memory(capsys, tmp_path, leak_mib, cause):
    state(tmp_path / "trainer_state.json", leak_mib)
    engine = FakeEngine()
    words = [*JOB, "log=trainer_state.json", "seeds=3"]
    found = answer(capsys, *words, engine=engine)
    (request,) = engine.requests
    assert (request.steps, set(request.draws[0].prompts)) == (90, {200})
    assert max(request.draws[0].completions[:16]) == 804
    assert found["growth"]["cause"] == cause
    low, high = found["growth"]["unexplained_bytes_per_step"][1:]
    assert low <= leak_mib * MIB <= high
    assert main(words, engine=never) == EXIT_OK
    said = " ".join(capsys.readouterr().out.split())
    expected = "Growth explained by lengths: 100 %" if leak_mib == 0 else "A leak: 30 MiB per step"
    assert expected in said
    assert "After step 60 of the log, completions go on to change by" in said


def test_a_worst_case_that_fits_although_it_would_reserve_more(capsys):
    job = ["model=qwen2.5-0.5b", "tuning=lora", "gpu=4090", "max_completion_length=3000", "logprobs=full"]
    assert main([*job, "completions=300", "steps=3", "seeds=1", "levers=false"], engine=FakeEngine()) == EXIT_OK
    said = " ".join(capsys.readouterr().out.split())
    (reserved,) = re.findall(r"([\d.]+) GiB reserved where a card is never full; it fits", said)
    assert float(reserved) > float(re.findall(r"of ([\d.]+) GiB that the card has", said)[0])


@pytest.mark.parametrize("longest", [3000, 300])
def test_fragments_beyond_the_estimate_are_said(capsys, longest):
    words, engine = [*WORDS, f"max_completion_length={longest}"], FakeEngine(base_bytes=19 * GIB)
    words.remove("max_completion_length=3000")
    found = answer(capsys, *words, engine=engine)
    more = found["peak_reserved_bytes"] - found["estimate"]["peak_reserved_bytes"]
    assert main(words, engine=engine) == EXIT_OK
    said = " ".join(capsys.readouterr().out.split())
    assert (more > 0) is (longest == 300)
    fragments = re.findall(
        r"it (?:fits|is tight|does not fit)\. Fragments that steps of other lengths leave take ([\d.]+) GiB", said
    )
    assert fragments == ([f"{more / GIB:.1f}"] if more > 0 else [])


@pytest.mark.parametrize(
    ("words", "kept", "reason"),
    [
        (["completions=300"], 60, "the lengths of the forecast are not those of the log"),
        ([], 9, "the log has measured memory in 9 steps, and 10 are needed (VramCallback logs it)"),
    ],
)
def test_a_log_that_is_not_compared_is_said(capsys, tmp_path, words, kept, reason):
    state(tmp_path / "trainer_state.json", 30)
    log = json.loads((tmp_path / "trainer_state.json").read_text())
    for entry in log["log_history"][kept:]:
        del entry["vram/allocated_gib/backward"]
    (tmp_path / "trainer_state.json").write_text(json.dumps(log))
    found = answer(capsys, *JOB, "log=trainer_state.json", "seeds=1", *words, engine=FakeEngine())
    assert f"Leak or longer rows? Not compared: {reason}." in found["notes"]
    assert found["growth"] is None


def test_a_log_alone_says_how_lengths_and_memory_grow(capsys, tmp_path):
    state(tmp_path / "trainer_state.json", 30)
    assert main(["log=trainer_state.json", "gpu=4090"], engine=never) == EXIT_OK
    said = " ".join(capsys.readouterr().out.split())
    assert "Steps 1 to 60 of a log of trl: completions have 301 to 360 tokens on average, +1.00 per step" in said
    # 4 rows of 2 MiB per token grow by 4 tokens per step, and 30 MiB leak.
    assert "62 MiB per step" in said
    # From 18.25 GiB at step 0 to the 23.16 GiB of the card are 81 steps of 62 MiB.
    assert "At this rate of growth the card is full at step 81" in said
    found = answer(capsys, "log=trainer_state.json", "gpu=4090", engine=never)
    assert (found["origin"], found["last_step"]) == ("measured", 60)
    assert found["memory_bytes_per_step"][0] == pytest.approx(62 * MIB)
    assert main(["log=trainer_state.json", "gpu=none"], engine=never) == EXIT_USAGE
    assert capsys.readouterr().err.startswith("gpu=none: ")


def test_the_examples_of_the_repository_are_read(capsys):
    folder = Path(__file__).parents[2] / "examples" / "forecast"
    job = [f"config={folder / 'grpo.yaml'}", "gpu=h100", "seeds=1"]
    assert answer(capsys, *job, f"lengths={folder / 'lengths.jsonl'}", "steps=3")["lengths"][0]["longest"] <= 2048
    log = f"log={folder / 'trainer_state.json'}"
    assert answer(capsys, *job, log)["steps"] == 700
    assert answer(capsys, log, engine=never)["mean_length_per_step"][0] > 0


def test_neither_torch_nor_numpy_is_imported_before_it_starts(tmp_path):
    program = (
        "import sys; from profiler.forecast.main import main\n"
        "assert main(['--help']) == 0\nassert main(['completions=0']) == 2\n"
        "assert not {'torch', 'numpy', 'pandas', 'matplotlib', 'pyarrow'} & set(sys.modules)"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
