"""`python -m profiler.share`: which records become rows, what is left out by name, refused, shown and written."""

import json
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import replace
from io import StringIO
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from builders import VERSIONS, lora, spec
from hypothesis import given, settings
from hypothesis import strategies as st
from measured_runs import H100, PARAMETERS, outcome, simulated, stored, training, trial

from maintenance.benchmark.main import main as benchmark
from maintenance.benchmark.rows.sent import faults_of_sent, read_row
from profiler.domain.cards.gpu import KNOWN_GPUS
from profiler.domain.errors import EXIT_OK, EXIT_USAGE, UsageError
from profiler.domain.memory import GIB
from profiler.domain.runs.other_runs import Watcher
from profiler.domain.runs.outcome import CardFacts, MeasuredDetails, Status, Verdict, Work
from profiler.domain.runs.shared import Metric, ReadBy, RowEnd, RowOrigin
from profiler.domain.trials.recipe import Recipe
from profiler.domain.trials.trial import Backend
from profiler.share.main import main
from profiler.share.rows import CAPPED, LONGEST_BATCH, OF_PROMPTS, row_line, row_of_trial

REFERENCE = Path(__file__).parents[2] / "results" / "reference"


@pytest.fixture
def share(tmp_path, monkeypatch, capsys):
    """Runs the command in a folder of its own; returns its exit code, rows, what else it prints, and its errors."""
    monkeypatch.chdir(tmp_path)

    def run(*words, simulate=lambda _: pytest.fail("simulated")):
        code = main(list(words), simulate=simulate)
        out, err = capsys.readouterr()
        lines = out.splitlines()
        rows = [read_row(line) for line in lines if line.startswith("{")]
        return code, rows, "\n".join(line for line in lines if not line.startswith("{")), err

    return run


def refused(found):
    """The only sentence of a command that was refused."""
    code, rows, said, err = found
    assert (code, rows, said) == (EXIT_USAGE, [], "")
    (line,) = err.splitlines()
    return line


def test_a_measured_trial_becomes_a_row(share, tmp_path):
    stored(tmp_path / "mine", trial())
    code, (row,), said, err = share("mine")
    assert (code, err) == (EXIT_OK, "")
    assert (row.origin, row.end, row.trainer) == (RowOrigin.SENT, RowEnd.OK, "trl GRPOTrainer")
    assert (row.card.name, row.card.memory_bytes) == (H100.title, H100.memory_bytes)
    assert (row.job["gpu"], row.job["model"], row.job["num_generations"]) == ("h100-80gb", "qwen2.5-0.5b", 4)
    assert not {"backend", "dataset", "seed", "weights"} & set(row.job)
    assert [(peak.metric, peak.size_bytes, peak.read_by) for peak in row.peaks] == [
        (Metric.ALLOCATED, 8 * GIB, ReadBy.TORCH_COUNTER),
        (Metric.RESERVED, 9 * GIB, ReadBy.TORCH_COUNTER),
        (Metric.DEVICE, 10 * GIB, ReadBy.COUNTER_AND_CONTEXT),
    ]
    assert row.versions["driver"] == "580.159.04"
    assert "1 row. Nothing is written; add file=shared.jsonl." in said


def test_each_line_is_shown_before_the_same_is_written(share, tmp_path):
    stored(tmp_path / "mine", trial(), trial("1" * 16, num_generations=8))
    _, rows, _, _ = share("mine")
    assert not (tmp_path / "shared.jsonl").exists()
    code, again, said, _ = share("mine", "file=shared.jsonl")
    lines = (tmp_path / "shared.jsonl").read_text().splitlines()
    assert (code, again, len(rows)) == (EXIT_OK, rows, 2)
    assert lines == [row_line(row) for row in rows]
    assert "2 rows: shared.jsonl. Nothing is sent" in said
    assert benchmark(["check=shared.jsonl"]) == EXIT_OK


def test_how_far_predictions_are_is_said_of_each_row(share, tmp_path):
    stored(tmp_path / "mine", trial(), simulated(allocated=6 * GIB))
    said = share("mine")[2]
    assert "allocated 8.00 GiB: estimate " in said
    assert "simulation -25.0 %" in said
    assert "reserved 9.00 GiB: estimate " in said
    assert "simulation +0.0 %" in said


def test_a_row_without_a_stored_simulation_is_simulated_if_asked(share, tmp_path):
    stored(tmp_path / "mine", trial())
    assert "not simulated; add confirm=true" in share("mine")[2]
    asked = []

    def simulate(spec):
        asked.append(spec)
        return outcome(4 * GIB, 9 * GIB, None)

    assert "simulation -50.0 %" in share("mine", "confirm=true", simulate=simulate)[2]
    assert [(spec.backend, spec.gpu) for spec in asked] == [(Backend.SIMULATED, "h100-80gb")]
    assert "not simulated: no" in share("mine", "confirm=true", simulate=lambda _: failed("no"))[2]


def test_an_emulated_trial_is_no_simulation(share, tmp_path):
    stored(tmp_path / "mine", trial(), trial("2" * 16, backend=Backend.EMULATED, gpu="h100-80gb"))
    assert "not simulated; add confirm=true" in share("mine")[2]


def failed(message):
    return outcome(verdict=Verdict(status=Status.FAILED, message=message))


def test_what_ran_out_of_memory_is_a_row_without_peaks(share, tmp_path):
    stored(tmp_path / "mine", trial(found=outcome(status=Status.OOM)))
    _, (row,), said, _ = share("mine")
    assert (row.end, row.peaks) == (RowEnd.OOM, ())
    assert (
        "out of memory on 79.2 GiB; by the estimate it needs".replace("79.2", f"{H100.memory_bytes / GIB:.2f}") in said
    )


@pytest.mark.parametrize(
    ("peaks", "says"),
    [
        ({"allocated": 9 * GIB, "reserved": 8 * GIB}, "is below allocated"),
        ({"reserved": 9 * GIB, "device": 8 * GIB + 5}, "is below reserved"),
        ({"allocated": 9 * GIB, "reserved": None, "device": 8 * GIB}, "is below allocated"),
        ({"device": 99 * GIB}, "is above the card's"),
        ({"allocated": GIB // 2}, "is below the weights"),
        ({"allocated": None, "reserved": None, "device": None}, "must have one"),
    ],
)
def test_an_impossible_row_is_refused_and_nothing_is_written(share, tmp_path, peaks, says):
    stored(tmp_path / "mine", trial("1" * 16, num_generations=8), trial(found=outcome(**peaks)))
    line = refused(share("mine", "file=shared.jsonl"))
    assert line.startswith("sent-")
    assert says in line
    assert not (tmp_path / "shared.jsonl").exists()


def test_the_model_must_be_the_one_that_ran(share, tmp_path):
    stored(tmp_path / "mine", trial(found=outcome(work=Work(parameters=PARAMETERS + 1))), trial("1" * 16))
    code, rows, _, err = share("mine")
    assert (code, len(rows)) == (EXIT_OK, 1)
    assert f"it has {PARAMETERS:,} parameters, and {PARAMETERS + 1:,} ran" in err


@pytest.mark.parametrize(("job", "heads"), [(spec(), 1), (lora(), 2)])
def test_a_reward_model_has_a_head_of_one_score(share, tmp_path, job, heads):
    """Measured with 494,033,664 parameters and 494,034,560 (results/reference/h200_fourth)."""
    ran = outcome(work=Work(parameters=PARAMETERS + heads * 896))
    keys = {"recipe": Recipe.REWARD, "backend": Backend.CUDA, "gpu": None, "max_length": 512, "beta": 0.0}
    stored(tmp_path / "mine", replace(trial(found=ran), spec=replace(job, **keys)))
    code, (row,), _, err = share("mine")
    assert (code, row.trainer, err) == (EXIT_OK, "trl RewardTrainer", "")


EMULATED_UUID = "GPU-01020304-0506-0708-090a-0b0c0d0e0f10"
NO_MEMORY = CardFacts(name=H100.title)
UNKNOWN_CARD = CardFacts(name="NVIDIA H900", memory_bytes=80 * GIB)


@pytest.mark.parametrize(
    ("record", "says"),
    [
        (simulated(), "Left out: backend=simulated: measures nothing (1 of the trials: fedcba9876543210)."),
        (
            trial("2" * 16, backend=Backend.EMULATED, gpu="h100-80gb"),
            "backend=emulated: measures nothing",
        ),
        (trial("2" * 16, backend=Backend.CPU), "backend=cpu: measures nothing"),
        (trial("2" * 16, found=outcome(status=Status.TIMEOUT)), "trial 2222222222222222=status=timeout: is no answer"),
        (trial("2" * 16, model="me/mine"), "model=me/mine: is not built in"),
        (trial("2" * 16, reward_models=("/home/me/judge",)), "model=/home/me/judge: is not built in"),
        (trial("2" * 16, alloc_conf="me:1"), "alloc_conf: has a key or a value that torch's allocator does not know"),
        (trial("2" * 16, found=outcome(card=UNKNOWN_CARD)), "card=NVIDIA H900: is no card that is known"),
        (
            trial("2" * 16, found=outcome(card=CardFacts(name=H100.title))),
            f"card={H100.title}: is no card that is known",
        ),
        (
            trial("2" * 16, found=outcome(measured=MeasuredDetails(driver_version="580.0.emulated"))),
            "an emulated driver: measures nothing",
        ),
        (
            trial("2" * 16, found=outcome(measured=MeasuredDetails(gpu_uuid=EMULATED_UUID))),
            "an emulated driver: measures nothing",
        ),
    ],
)
def test_what_is_no_row_is_left_out_by_name(share, tmp_path, record, says):
    stored(tmp_path / "mine", trial(), record)
    code, rows, _, err = share("mine")
    assert (code, len(rows)) == (EXIT_OK, 1)
    (line,) = err.splitlines()
    assert says in line


@pytest.mark.parametrize("backend", [each for each in Backend if each is not Backend.CUDA])
def test_no_row_is_made_of_what_was_not_measured(backend):
    with pytest.raises(UsageError, match=f"backend={backend}: is not measured"):
        row_of_trial(trial(backend=backend, gpu="h100-80gb"))


def test_a_capped_card_has_its_kernels_and_its_own_memory(share, tmp_path):
    card = CardFacts(name=f"{H100.title} capped to 24 GiB", memory_bytes=24 * GIB)
    stored(tmp_path / "mine", trial(gpu="rtx-4090-24gb", found=outcome(card=card)), trial("1" * 16))
    (capped,) = [row for row in share("mine")[1] if row.differs]
    assert (capped.differs, capped.job["gpu"]) == ((CAPPED,), "h100-80gb")
    assert (capped.card.name, capped.card.memory_bytes) == (H100.title, 24 * GIB)


def test_a_trial_on_data_says_that_lengths_are_missing():
    assert row_of_trial(trial(dataset="me/prompts")).missing == (OF_PROMPTS,)


def test_versions_are_public_ones():
    versions = replace(VERSIONS, torch="2.13.0+acme.internal", trl="git-of-alice", deepspeed="0.18.0rc1")
    row = row_of_trial(trial(versions=versions))
    assert (row.versions["torch"], row.versions["deepspeed"]) == ("2.13.0", "0.18.0rc1")
    assert "trl" not in row.versions
    assert row.missing == ("version of trl",)


# ---- trainings of VramCallback ---------------------------------------------------------------------------------------

JOB = ("model=qwen2.5-0.5b", "tuning=full", "recipe=sft", "max_length=512")


def test_a_training_becomes_a_row_of_the_job_that_is_described(share, tmp_path):
    stored(tmp_path / "mine", training())
    code, (row,), said, _ = share("mine", *JOB)
    assert code == EXIT_OK
    assert (row.trainer, row.job["max_length"], row.job["steps"], row.job["gpu"]) == (
        "trl SFTTrainer",
        512,
        3,
        "h100-80gb",
    )
    assert (row.missing, row.peak(Metric.DEVICE)) == ((LONGEST_BATCH,), 10 * GIB)
    assert "allocated 8.00 GiB: estimate" in said


def test_the_job_of_a_training_can_be_a_file_of_its_release(share, tmp_path):
    (tmp_path / "sft.yaml").write_text("model_name_or_path: Qwen/Qwen2.5-0.5B\nmax_length: 512\n")
    stored(tmp_path / "mine", training())
    code, (row,), _, _ = share("mine", "config=sft.yaml", "recipe=sft")
    assert (code, row.job["model"], row.job["recipe"]) == (EXIT_OK, "qwen2.5-0.5b", "sft")


def test_a_file_is_read_for_the_release_that_ran(share, tmp_path):
    (tmp_path / "sft.yaml").write_text("model_name_or_path: Qwen/Qwen2.5-0.5B\nmax_length: 512\n")
    stored(tmp_path / "mine", replace(training(), versions=replace(VERSIONS, trl="0.22.2")))
    _, (row,), _, _ = share("mine", "config=sft.yaml", "recipe=sft")
    assert (row.versions["trl"], row.job["logprobs"]) == ("0.22.2", "nll_row_entropy")
    _, (newest,), _, _ = share("mine", "config=sft.yaml", "recipe=sft", "trl=1.16")
    assert newest.job["logprobs"] == "fused"


def test_the_card_of_a_training_is_the_one_that_ran(share, tmp_path):
    l40s = KNOWN_GPUS["l40s-48gb"]
    card = CardFacts(name=l40s.title, memory_bytes=l40s.memory_bytes)
    stored(tmp_path / "mine", training(found=outcome(card=card)))
    assert share("mine", *JOB)[1][0].job["gpu"] == share("mine", *JOB, "gpu=l40s")[1][0].job["gpu"] == "l40s-48gb"
    assert "gpu=h100: is not the card that ran, NVIDIA L40S" in refused(share("mine", *JOB, "gpu=h100"))


def test_the_job_is_that_of_the_newest_training(share, tmp_path):
    late = training("20260201T090000123-4711", found=outcome(7 * GIB))
    stored(tmp_path / "mine", training(), late)
    _, (row,), _, err = share("mine", *JOB)
    assert row.peak(Metric.ALLOCATED) == 7 * GIB
    assert "run=20260131T090000123-4711: is earlier than the training whose job is described" in err


def test_ranks_are_one_job_with_the_highest_of_their_peaks(share, tmp_path):
    ranks = [training(f"20260201T090000123-4711-rank{rank}", found=outcome((7 + rank) * GIB)) for rank in range(2)]
    stored(tmp_path / "mine", *ranks)
    _, (row,), _, _ = share("mine", *JOB)
    assert (row.peak(Metric.ALLOCATED), row.job["num_processes"], row.job["distributed_type"]) == (
        8 * GIB,
        2,
        "multi_gpu",
    )


def _by_zero_3(folder: Path, tuning: str) -> tuple[str, ...]:
    (folder / "zero3.yaml").write_text("distributed_type: DEEPSPEED\ndeepspeed_config: {zero_stage: 3}\n")
    (folder / "grpo.yaml").write_text("model_name_or_path: Qwen/Qwen2.5-0.5B-Instruct\nmax_completion_length: 256\n")
    return (f"config={folder / 'grpo.yaml'}", f"config={folder / 'zero3.yaml'}", f"tuning={tuning}")


def test_what_shards_a_training_is_in_its_row_or_it_is_refused(share, tmp_path):
    stored(tmp_path / "mine", training())
    assert "distributed_type=ZeRO-3: has no formula for this job." in refused(
        share("mine", *_by_zero_3(tmp_path, "lora"), "num_processes=1")
    )
    _, (row,), _, _ = share("mine", *_by_zero_3(tmp_path, "full"), "num_processes=1")
    assert (row.job["distributed_type"], row.job["zero_stage"]) == ("deepspeed", 3)


def test_a_size_that_no_file_states_is_no_fact_of_a_row(share, tmp_path):
    stored(tmp_path / "mine", training())
    (tmp_path / "train.py").write_text(
        "import sys\nfrom trl import SFTConfig, SFTTrainer\n"
        "args = SFTConfig(max_length=int(sys.argv[1]), per_device_train_batch_size=1)\n"
        'SFTTrainer(model="Qwen/Qwen2.5-0.5B", args=args).train()\n'
    )
    said = refused(share("mine", f"config={tmp_path / 'train.py'}"))
    assert "does not state a size that a row needs" in said
    assert "max_length" in said


def test_a_training_without_a_job_is_left_out(share, tmp_path):
    stored(tmp_path / "mine", trial("1" * 16))
    stored(tmp_path / "other", training())
    stored(tmp_path / "third", training("20260131T080000123-1", watcher=Watcher.COMMAND))
    code, rows, _, err = share("mine", "other", "third")
    assert (code, len(rows)) == (EXIT_OK, 1)
    assert "was kept by VramCallback, which does not know the job. Add config=FILE or model=NAME." in err
    assert "is of python -m profiler.monitor, whose samples may miss a peak" in err
    assert "does not know the job" in refused(share("other"))


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("model=qwen2.5-7b", "tuning=lora"), "model=qwen2.5-7b: is not the model that ran"),
        (("model=qwen2.5-0.5b", "num_generations=4,8"), "num_generations=4,8: has several values"),
        (("model=qwen2.5-0.5b", "num_generations=x"), "num_generations=x"),
        (("config=nosuch.yaml",), "config=nosuch.yaml"),
    ],
)
def test_a_wrong_job_is_refused(share, tmp_path, words, says):
    stored(tmp_path / "mine", training())
    assert says in refused(share("mine", *words))


def test_a_training_on_an_emulated_card_is_refused(share, tmp_path):
    stored(tmp_path / "mine", training(uuid=EMULATED_UUID))
    assert "an emulated driver: measures nothing" in refused(share("mine", *JOB))


# ---- where results are -----------------------------------------------------------------------------------------------


def test_kept_measurements_become_rows_from_their_tables(share):
    code, rows, said, err = share(str(REFERENCE / "h200_second" / "tables"))
    assert (code, len(rows)) == (EXIT_OK, 58)
    assert {row.card.name for row in rows} == {"NVIDIA H200"}
    assert sum(row.end is RowEnd.OOM for row in rows) == 9
    assert [fault for row in rows for fault in faults_of_sent(row)] == []
    assert "backend=emulated: measures nothing (59 of the trials: " in err
    assert "simulation +0.0 %" in said


def test_a_table_alone_and_a_record_alone_can_be_named(share, tmp_path):
    stored(tmp_path / "mine", trial())
    record = share(str(tmp_path / "mine" / "records" / "0123456789abcdef.json"))
    table = share(str(REFERENCE / "h200" / "tables" / "large" / "runs.parquet"))
    assert (record[0], len(record[1]), table[0], len(table[1])) == (EXIT_OK, 1, EXIT_OK, 2)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ((), "folder=(none): name one folder or several"),
        (("nosuch",), "folder=nosuch: no such folder"),
        (("empty",), "folder=empty: has nothing measured that a row can have"),
        (("file.json",), "record=file.json: is no record of a trial or of a training"),
        (("wandb",), "is no record of a trial or of a training"),
        (("mine", "file=there"), "file=there: exists already; name a new file"),
        (("mine", "file=no/such.jsonl"), "file=no/such.jsonl: is in a folder that does not exist"),
        (("mine", "flie=x"), "Did you mean 'file'?"),
        (("mine", "--nonsense"), "argument=--nonsense"),
        (("mine", "confirm=maybe"), "confirm=maybe"),
        (("mine", "model=tiny"), "describes the job of a training by VramCallback, and none is stored"),
        (("mine", "format=json"), "format=json"),
    ],
)
def test_bad_input_is_one_sentence(share, tmp_path, words, says):
    stored(tmp_path / "mine", trial())
    (tmp_path / "empty").mkdir()
    (tmp_path / "there").write_text("")
    (tmp_path / "file.json").write_text('{"run": "of another program"}')
    (tmp_path / "wandb" / "records").mkdir(parents=True)
    (tmp_path / "wandb" / "records" / "run.json").write_text("[1]")
    assert says in refused(share(*words))


def test_help_is_the_text_and_reads_nothing(share):
    code, _, said, _ = share("--help")
    assert code == EXIT_OK
    assert "no name of a machine or of a user" in said


# ---- privacy ---------------------------------------------------------------------------------------------------------

SECRET = "zq-private-zq"
SECRETS = st.sampled_from(
    [
        SECRET,
        f"/home/{SECRET}/models",
        f"{SECRET}.example.org",
        f"{SECRET}@example.org",
        f"2.13.0+{SECRET}",
        f"a:{SECRET}",
        f"NVIDIA H100 80GB HBM3 {SECRET}",
    ]
)
KEYS = st.sets(st.sampled_from(["model", "reward_models", "dataset", "alloc_conf", "lora_target_modules"]))
NAMES = st.sets(st.sampled_from(["torch", "trl", "transformers", "peft", "bitsandbytes", "deepspeed", "vllm", "cuda"]))


@settings(max_examples=60, deadline=None)
@given(secret=SECRETS, keys=KEYS, names=NAMES, on_known_card=st.booleans(), driver=st.booleans())
def test_a_line_has_no_text_of_its_user(secret, keys, names, on_known_card, driver):
    """Host names, users, paths and data are in texts of a record of a trial, and of one of a training."""
    lists = ("reward_models", "lora_target_modules")
    changes = {key: (secret,) if key in lists else secret for key in keys}
    found = outcome(
        verdict=Verdict(status=Status.OK, message=secret, unavailable=secret),
        card=CardFacts(name=H100.title if on_known_card else secret, memory_bytes=H100.memory_bytes),
        measured=MeasuredDetails(gpu_uuid=secret, driver_version=secret if driver else "580.159.04"),
    )
    versions = replace(VERSIONS, profiler=secret, **dict.fromkeys(names, secret))
    of_trial = replace(
        trial(found=found, versions=versions),
        spec=replace(lora(backend=Backend.CUDA, gpu=None), **changes),
        grid=secret,
        label=secret,
    )
    of_training = replace(training(found=found), command=(secret,), versions=versions)
    with TemporaryDirectory() as folder, redirect_stdout(StringIO()) as out, redirect_stderr(StringIO()):
        stored(Path(folder) / "mine", of_trial, of_training)
        code = main([f"{folder}/mine", f"file={folder}/shared.jsonl", *JOB])
        path = Path(folder) / "shared.jsonl"
        written = path.read_text() if path.exists() else ""
    assert SECRET not in out.getvalue().replace(folder, "")
    assert SECRET not in written
    assert (code == EXIT_OK) == (written.count("\n") > 0)
    if on_known_card and not keys - {"dataset"}:
        assert written.count("\n") == 2


def test_a_training_has_nothing_of_its_command(share, tmp_path):
    stored(tmp_path / "mine", training())
    _, (row,), _, _ = share("mine", *JOB)
    line = row_line(row)
    assert not [
        text for text in ("alice", "train.py", "secret", "4711", "2026", training().gpus[0].uuid) if text in line
    ]


def texts_in(value, place=()):
    """Every text of parsed JSON with its place."""
    if isinstance(value, str):
        yield place
    elif isinstance(value, dict):
        for key, part in value.items():
            yield from texts_in(part, (*place, key))
    elif isinstance(value, list):
        for number, part in enumerate(value):
            yield from texts_in(part, (*place, number))


ROW = json.loads(row_line(row_of_trial(replace(trial(), spec=lora(backend=Backend.CUDA, gpu=None)))))


@pytest.mark.parametrize("place", list(texts_in(ROW)), ids=lambda place: ".".join(map(str, place)))
def test_a_sent_row_with_any_other_text_is_refused(place, tmp_path, capsys):
    changed = json.loads(json.dumps(ROW))
    part = changed
    for key in place[:-1]:
        part = part[key]
    part[place[-1]] = SECRET
    (tmp_path / "sent.jsonl").write_text(json.dumps(changed) + "\n")
    assert benchmark([f"check={tmp_path / 'sent.jsonl'}"]) == EXIT_USAGE
    assert "line 1" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (f"{json.dumps(ROW)}\n{json.dumps(ROW)}\n", "line 2=sent-"),
        (f"{json.dumps(ROW).replace('{', '{ ', 1)}\n", "is not written as python -m profiler.share does"),
        (f'{{"row_id": "{SECRET}", {json.dumps(ROW)[1:]}\n', "is not written as python -m profiler.share does"),
        ("{}\n", "line 1={}: is no row (keys missing or unknown: "),
        ("nonsense\n", "line 1=nonsense: is no row"),
        (None, "cannot be read (No such file or directory)"),
    ],
)
def test_a_file_that_is_no_set_of_rows_is_refused(text, says, tmp_path, capsys):
    if text is not None:
        (tmp_path / "sent.jsonl").write_text(text)
    assert benchmark([f"check={tmp_path / 'sent.jsonl'}"]) == EXIT_USAGE
    (line,) = capsys.readouterr().err.splitlines()
    assert says in line
