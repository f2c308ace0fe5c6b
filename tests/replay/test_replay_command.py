"""`python -m profiler.replay`: its answers, and one sentence for everything that is wrong with its input."""

import gzip
import io
import json
import os
import pickle
import subprocess
import sys
from itertools import product

import pytest
import real_histories
from own_histories import ALLOC, EMPTY, FREE, recorded
from rich.console import Console
from rich.table import Table as RichTable

from profiler.domain.cards.gpu import KNOWN_GPUS
from profiler.domain.errors import EXIT_OK, EXIT_USAGE
from profiler.rendering.document import Align, Column, Document, Table
from profiler.rendering.layouts.plain_text import plain_text
from profiler.replay.command import OPTIONS, read_command
from profiler.replay.main import main

MIB = 1024 * 1024
GIB = 1024 * MIB


def fragmented() -> dict:
    """On a card of 5,000 MiB: of three segments of 1,500 only 1,000 each are used again, and 2,000 are refused."""
    history = recorded([], capacity_bytes=5000 * MIB)
    for _ in range(3):
        history.do((ALLOC, 1500 * MIB, 0))
        history.do((FREE, len(history.live) - 1, 0))
        history.do((ALLOC, 1000 * MIB, 0))
    history.do((ALLOC, 2000 * MIB, 0))
    return history.snapshot()


@pytest.fixture
def path(tmp_path):
    file = tmp_path / "run.pickle"
    file.write_bytes(pickle.dumps(fragmented()))
    return file


@pytest.fixture
def run(capsys):
    def run(*words):
        code = main([str(word) for word in words])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


# ---- the table -------------------------------------------------------------------------------------------------------


def test_a_history_that_ran_out_of_memory_is_explained(run, path):
    code, out, err = run(path)
    assert (code, err) == (EXIT_OK, "")
    text = " ".join(out.split())
    assert "run.pickle: 16 entries of device 0, 1 stream, settings: PyTorch's defaults." in text
    assert "It begins with an empty cache." in text
    assert "equal to the recording, every block and every segment." in text
    assert "Recorded: out of memory at entry 15: 1.95 GiB requested, 2.93 GiB allocated of 4.39 GiB reserved" in text
    assert "500.00 MiB left on the card." in text
    # 3 x 500 are free; a third of them is the largest block.
    assert "Of 1.46 GiB that were cached and free, the largest block that the request could use had 500.00 MiB." in text
    assert "What if: expandable_segments:True, tried because neither alloc_conf= nor gpu= was given." in text
    assert "It would have fitted: what was refused at entry 15 would have been served." in text
    assert "not measured" in text


def test_before_and_after_are_columns(run, path):
    _, out, _ = run(path, "alloc_conf=expandable_segments:True")
    rows = {line[:32].strip(): line[32:].split("  ") for line in out.splitlines() if line[32:].strip()}

    def cells(label):
        return [cell.strip() for cell in rows[label] if cell.strip()]

    assert cells("peak of reserved memory") == ["4.39 GiB", "4.88 GiB"]
    assert cells("allocated then") == ["3.42 GiB", "4.88 GiB"]
    assert cells("fragmentation: not allocated") == ["0.98 GiB", "0.00 GiB"]
    assert cells("share of reserved") == ["22.2 %", "0.0 %"]
    assert cells("largest free block") == ["0.49 GiB", "0.00 GiB"]
    assert cells("segments") == ["3", "1"]
    assert cells("peak of allocated memory") == ["3.42 GiB", "4.88 GiB"]
    assert cells("retries: full, cache given back") == ["1", "0"]
    assert cells("fits") == ["no, 1 refused", "yes"]


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["gpu=t4-16gb"],
        ["alloc_conf=max_split_size_mb:64,garbage_collection_threshold:0.8"],
        ["alloc_conf=expandable_segments:True,per_process_memory_fraction:0.2", "gpu=a100-40gb"],
        ["alloc_conf=roundup_power2_divisions:[1:2,512:4,>:8]"],
    ],
)
def test_no_line_is_longer_than_a_terminal(run, path, tmp_path, words):
    snapshot = fragmented()
    snapshot["device_traces"][0] = snapshot["device_traces"][0][5:]
    cut = tmp_path / "cut.pickle"
    cut.write_bytes(pickle.dumps(snapshot))
    code, out, _ = run(path, cut, *words)
    assert code == EXIT_OK
    assert max(map(len, out.splitlines())) <= 80


def test_a_smaller_card_says_where_it_would_have_run_out(run, tmp_path):
    path = tmp_path / "run.pickle"
    path.write_bytes(pickle.dumps(recorded([(ALLOC, 8 * GIB, 0), (ALLOC, 7 * GIB, 0)]).snapshot()))
    _, out, _ = run(path, "gpu=t4-16gb")
    text = " ".join(out.split())
    assert (
        "On t4-16gb the process can take 14.62 GiB: 14.75 GiB without the CUDA context, which is assumed to be" in text
    )
    assert "It would have run out of memory at entry 3: 7.00 GiB requested, 8.00 GiB allocated of 8.00 GiB" in text
    assert out.split("fits")[1].split("\n")[0].split() == ["yes", "no"]


def test_a_history_that_begins_in_the_middle_is_tried_with_its_own_settings_too(run, tmp_path):
    history = recorded([(ALLOC, 30 * MIB, 0), (FREE, 0, 0), (ALLOC, 1, 0), (ALLOC, 20 * MIB, 0)])
    path = tmp_path / "run.pickle"
    path.write_bytes(pickle.dumps(history.snapshot(cut=4)))
    _, out, _ = run(path)
    text = " ".join(out.split())
    assert "It begins in the middle: 30.00 MiB were held in 1 segment." in text
    assert "same settings," in text
    assert "what was only cached then is not made again. So compare the what-if with this column." in text
    assert "32.0 MiB" in text
    assert "22.0 MiB" in text


def test_expandable_segments_are_not_tried_again(run, tmp_path):
    path = tmp_path / "run.pickle"
    path.write_bytes(pickle.dumps(recorded([(ALLOC, 1, 0)], alloc_conf="expandable_segments:True").snapshot()))
    _, out, _ = run(path)
    assert "settings: expandable_segments:True." in " ".join(out.split())
    assert "Nothing else was tried: its segments are expandable already." in " ".join(out.split())
    assert "what if" not in out
    assert "what if" in run(path, "alloc_conf=")[1]


def test_a_setting_without_effect_is_said_to_be_one(run, path):
    _, out, _ = run(path, "alloc_conf=garbage_collection_threshold:0.8")
    text = " ".join(out.split())
    assert "garbage_collection_threshold changes nothing here: PyTorch collects only where" in text
    _, out, _ = run(path, "alloc_conf=garbage_collection_threshold:0.8,per_process_memory_fraction:0.9")
    assert "changes nothing" not in " ".join(out.split())


def test_where_the_model_departs_is_said(run, tmp_path):
    snapshot = fragmented()
    trace = snapshot["device_traces"][0]
    trace.append({"action": "oom", "device_free": 0, "size": 400 * MIB, "stream": 0})
    path = tmp_path / "run.pickle"
    path.write_bytes(pickle.dumps(snapshot))
    code, out, _ = run(path)
    assert code == EXIT_OK
    assert "equal to the recording up to entry 16, oom of 419430400: the model had memory." in " ".join(out.split())


def test_entries_that_contradict_each_other_are_not_replayed(run, tmp_path):
    snapshot = fragmented() | {"segments": []}
    path = tmp_path / "run.pickle"
    path.write_bytes(pickle.dumps(snapshot))
    code, out, _ = run(path, f"figure={tmp_path / 'none.png'}")
    assert code == EXIT_OK
    assert "It cannot be replayed, because its entries do not lead to its segments: entry" in " ".join(out.split())
    assert "what if" not in out
    assert not (tmp_path / "none.png").exists()


def _on_devices(*traces: list) -> dict:
    """Return a snapshot with a history per device, and the memory that each held at the end."""
    found = {"segments": [], "device_traces": [], "allocator_settings": {}}
    for number, requests in enumerate(traces):
        one = recorded(requests).snapshot() if isinstance(requests, list) else requests
        found["device_traces"].append(one["device_traces"][0])
        found["segments"] += [segment | {"device": number} for segment in one["segments"]]
    return found


def test_the_device_that_ran_out_is_shown_and_the_others_are_named(run, tmp_path):
    """Device 1 of three ran out of memory; device 2 has more entries."""
    longer = [(ALLOC, 3 * MIB, 0)] * 30
    path = tmp_path / "several.pickle"
    path.write_bytes(pickle.dumps(_on_devices([(ALLOC, 8 * MIB, 0)], fragmented(), longer)))
    code, out, _ = run(path)
    text = " ".join(out.split())
    assert code == EXIT_OK
    assert "16 entries of device 1" in text and "Recorded: out of memory at entry 15" in text
    assert "The file has other devices: device 0 (2 entries); device 2 (" in text
    assert "device=0 shows that one." in text
    other = " ".join(run(path, "device=2")[1].split())
    assert "The file has other devices: device 1 (16 entries, out of memory at entry 15); device 0 (" in other
    assert "device=1 shows that one." in other
    found = json.loads(run(path, "format=json")[1])["snapshots"][0]
    assert found["device"] == 1
    assert [each["device"] for each in found["other_devices"]] == [0, 2]
    assert json.loads(run(path, "device=0", "format=json")[1])["snapshots"][0]["other_devices"][0] == {
        "device": 1,
        "entries": 16,
        "first_out_of_memory_entry": 15,
    }


@pytest.mark.parametrize("first", [0, 1])
def test_of_two_devices_that_ran_out_the_first_is_shown(run, tmp_path, first):
    snapshot = _on_devices(fragmented(), fragmented())
    for number, trace in enumerate(snapshot["device_traces"]):
        snapshot["device_traces"][number] = [
            entry | {"time_us": 1000 + position + (0 if number == first else 500)}
            for position, entry in enumerate(trace)
        ]
    path = tmp_path / "several.pickle"
    path.write_bytes(pickle.dumps(snapshot))
    assert f"of device {first}," in run(path)[1]


@pytest.mark.parametrize("kept", [0, 1])
def test_a_replay_of_nothing_is_not_called_equal(run, tmp_path, kept):
    snapshot = recorded([(ALLOC, 8 * MIB, 0)]).snapshot()
    snapshot["device_traces"][0] = [{"action": "snapshot", "addr": 0, "size": 1, "stream": 0}] * kept
    path = tmp_path / "nothing.pickle"
    path.write_bytes(pickle.dumps(snapshot))
    code, out, _ = run(path)
    text = " ".join(out.split())
    assert code == EXIT_OK
    assert "Nothing was replayed" in text and "equal" not in text
    found = json.loads(run(path, "format=json")[1])["snapshots"][0]
    assert (found["is_equal"], found["replayed_entries"]) == (None, 0)


def test_a_device_can_be_chosen(run, tmp_path):
    snapshot = fragmented()
    snapshot["device_traces"] = [[], snapshot["device_traces"][0]]
    for segment in snapshot["segments"]:
        segment["device"] = 1
    path = tmp_path / "run.pickle"
    path.write_bytes(pickle.dumps(snapshot))
    assert "of device 1" in run(path)[1]
    assert "0 entries of device 0" in run(path, "device=0")[1]
    code, _, err = run(path, "device=7")
    assert code == EXIT_USAGE
    assert err == f"{path}: device=7: the snapshot has 0, 1.\n"


# ---- JSON ------------------------------------------------------------------------------------------------------------


def test_json_has_the_numbers_of_the_table(run, path):
    code, out, _ = run(path, "format=json", "alloc_conf=expandable_segments:True", "gpu=t4-16gb")
    assert code == EXIT_OK
    found = json.loads(out)
    assert found["unreadable"] == {}
    (snapshot,) = found["snapshots"]
    assert snapshot["file"] == str(path)
    assert snapshot["is_equal"] is True
    assert snapshot["begun_anew"] is None
    before, after = snapshot["recorded"], snapshot["what_if"]
    assert before["peak_reserved_bytes"] == 4500 * MIB
    assert before["fragmentation_at_peak_bytes"] == 1000 * MIB
    assert before["out_of_memory"][0]["largest_free_bytes"] == 500 * MIB
    assert after["origin"] == "replayed"
    assert after["alloc_conf"] == "expandable_segments:True"
    assert (after["gpu"], after["capacity_source"], after["fits"]) == ("t4-16gb", "gpu", True)
    assert after["capacity_bytes"] < KNOWN_GPUS["t4-16gb"].memory_bytes
    assert after["served_entries"] == [15]


# ---- several ---------------------------------------------------------------------------------------------------------


def test_a_folder_is_answered_file_by_file(run, tmp_path):
    (tmp_path / "a.pickle").write_bytes(pickle.dumps(fragmented()))
    (tmp_path / "b.pkl").write_bytes(b"not a pickle")
    (tmp_path / "c.pickle.gz").write_bytes(gzip.compress(pickle.dumps(fragmented())))
    (tmp_path / "notes.txt").write_bytes(b"")
    code, out, err = run(tmp_path)
    assert code == EXIT_OK
    assert [line.split(":")[0] for line in out.splitlines() if " entries of device " in line] == [
        "a.pickle",
        "c.pickle.gz",
    ]
    assert err.startswith(f"snapshot={tmp_path / 'b.pkl'}: is not a pickle")
    assert err.count("\n") == 1
    code, out, _ = run(tmp_path, "format=json")
    assert [each["file"] for each in json.loads(out)["snapshots"]] == [
        str(tmp_path / "a.pickle"),
        str(tmp_path / "c.pickle.gz"),
    ]
    assert list(json.loads(out)["unreadable"]) == [str(tmp_path / "b.pkl")]


def test_a_folder_of_which_nothing_can_be_read_is_a_fault(run, tmp_path):
    (tmp_path / "a.pickle").write_bytes(b"")
    (tmp_path / "b.pickle").write_bytes(pickle.dumps({"segments": []}))
    code, out, err = run(tmp_path)
    assert (code, out) == (EXIT_USAGE, "")
    assert [line.split(": ")[0] for line in err.splitlines()] == [
        f"snapshot={tmp_path / 'a.pickle'}",
        str(tmp_path / "b.pickle"),
    ]


def test_private_pools_are_named_with_the_file(run, tmp_path):
    snapshot = fragmented()
    snapshot["segments"][0]["segment_pool_id"] = (0, 1)
    path = tmp_path / "graphs.pickle"
    path.write_bytes(pickle.dumps(snapshot))
    code, _, err = run(path)
    assert code == EXIT_USAGE
    assert err == (
        f"{path}: segments=1 of private pools (CUDA graphs, MemPool): only the default pool can be replayed.\n"
    )


# ---- figures ---------------------------------------------------------------------------------------------------------


def test_a_figure_has_the_requested_format(run, path, tmp_path):
    for suffix, start in ((".png", b"\x89PNG"), (".svg", b"<?xml")):
        figure = tmp_path / "deep" / f"figure{suffix}"
        assert run(path, f"figure={figure}")[0] == EXIT_OK
        assert figure.read_bytes().startswith(start)


def test_figures_of_several_go_into_a_folder(run, path, tmp_path):
    other = tmp_path / "other" / "run.pkl"
    other.parent.mkdir()
    other.write_bytes(path.read_bytes())
    folder = tmp_path / "figures"
    assert run(path, other, f"figure={folder}")[0] == EXIT_OK
    assert sorted(file.name for file in folder.iterdir()) == ["run-2.png", "run.png"]
    code, _, err = run(path, other, f"figure={tmp_path / 'one.png'}")
    assert code == EXIT_USAGE
    assert "is one file, and there are 2 snapshots. Name a folder." in err
    assert run(path, f"figure={folder}")[0] == EXIT_OK


def test_a_figure_of_another_format_is_refused_before_anything_is_read(run, path, tmp_path):
    code, out, err = run(path, f"figure={tmp_path / 'figure.jpg'}")
    assert (code, out) == (EXIT_USAGE, "")
    assert "must end in .png or .svg, or be a folder" in err


# ---- the command line ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("word", "sentence"),
    [
        ("gpu=a100", "gpu=a100: is one of several cards: a100-40gb, a100-80gb"),
        ("gpu=t4-16g", "Did you mean 't4-16gb'?"),
        ("device=x", "device=x: must be a whole number of at least 0."),
        ("device=-1", "device=-1: must be"),
        ("device=99999999999", "device=99999999999: must be"),
        ("format=xml", "format=xml: must be one of table, json."),
        ("figure=", "figure='': must be a path that ends in .png or .svg"),
        ("alloc_conf=max_split_size_mb:1", "max_split_size_mb must be a whole number of at least 20"),
        ("alloc_conf=expandable", "'expandable' is not a key of PYTORCH_ALLOC_CONF"),
        (
            "gpus=a100-40gb",
            "gpus=a100-40gb: is unknown; the keys are alloc_conf, gpu, device, figure, format. Did you mean 'gpu'?",
        ),
        ("--gpu", "argument=--gpu: is not of the form key=value. Write gpu=NAME."),
        ("--verbose", "argument=--verbose: is not of the form key=value."),
    ],
)
def test_what_is_wrong_is_named(run, path, word, sentence):
    code, out, err = run(path, word)
    assert (code, out) == (EXIT_USAGE, "")
    assert sentence in err


def test_all_faults_are_named_at_once(run):
    code, _, err = run("gpu=x", "format=y", "foo=z")
    assert code == EXIT_USAGE
    assert len(err.splitlines()) == 4
    assert err.splitlines()[-1] == (
        "snapshot=none: name a file or a folder. Write: python -m profiler.replay snapshot.pickle"
    )


def test_a_missing_file_is_named(run, tmp_path):
    code, _, err = run(tmp_path / "missing.pickle")
    assert (code, err) == (EXIT_USAGE, f"snapshot={tmp_path / 'missing.pickle'}: no such file.\n")


def test_a_file_may_have_an_equals_sign_in_its_name(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "lr=3.pickle").write_bytes(pickle.dumps(fragmented()))
    assert run("lr=3.pickle")[0] == EXIT_OK
    assert [str(each) for each in read_command(["runs/lr=3.pickle"]).paths] == ["runs/lr=3.pickle"]


def test_a_later_word_wins():
    command = read_command(["x", "device=1", "device=2", "gpu=t4-16gb", "gpu=a100-40gb"])
    assert command.options.device == 2
    assert command.options.gpu is KNOWN_GPUS["a100-40gb"]


def test_help_is_on_every_screen(run):
    for word in ("-h", "--help"):
        code, out, _ = run(word)
        assert code == EXIT_OK
        assert max(map(len, out.splitlines())) <= 80
        assert "alloc_conf=TEXT" in out


def test_the_command_imports_neither_torch_nor_pandas(path):
    script = "import sys; from profiler.replay.main import main; main(sys.argv[1:]); print(sorted(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", script, str(path), "gpu=t4-16gb"], check=True, capture_output=True, text=True
    )
    modules = done.stdout.splitlines()[-1]
    for name in ("torch", "pandas", "pyarrow", "matplotlib", "transformers"):
        assert f"'{name}'" not in modules


def test_a_reader_may_stop_reading(path):
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "wb") as closed:
        done = subprocess.run(
            [sys.executable, "-m", "profiler.replay", str(path)], check=False, stdout=closed, stderr=subprocess.PIPE
        )
    assert (done.returncode, done.stderr) == (EXIT_OK, b"")


def test_an_emptied_cache_of_the_program_is_emptied_in_the_what_if(run, tmp_path):
    steps = [(ALLOC, 300 * MIB, 0), (FREE, 0, 0), (EMPTY, 0, 0), (ALLOC, 300 * MIB, 0), (FREE, 0, 0), (EMPTY, 0, 0)]
    path = tmp_path / "run.pickle"
    path.write_bytes(pickle.dumps(recorded(steps).snapshot()))
    (found,) = json.loads(run(path, "format=json", "alloc_conf=")[1])["snapshots"]
    assert found["what_if"]["peak_reserved_bytes"] == found["recorded"]["peak_reserved_bytes"] == 300 * MIB
    assert found["what_if"]["num_alloc_retries"] == 0


@pytest.mark.skipif(not real_histories.manifest(), reason=real_histories.MISSING)
def test_real_histories_are_answered(run, tmp_path):
    for about in real_histories.manifest()[:8]:
        (tmp_path / f"{about['name']}.pickle").write_bytes(pickle.dumps(real_histories.snapshot_of(about)))
    code, out, err = run(tmp_path, "gpu=rtx-4090-24gb")
    assert (code, err) == (EXIT_OK, "")
    assert out.count("equal to the recording, every block and every segment.") == 8
    assert max(map(len, out.splitlines())) <= 80


def test_every_row_and_key_is_documented(run, path):
    documented = (real_histories.CHECKOUT / "docs" / "replay.md").read_text(encoding="utf-8")
    table = run(path)[1].split("\n\n")[1]
    labels = [label for line in table.splitlines() if (label := line[:32].strip())]
    assert len(labels) == 11
    assert [label for label in labels if f"| {label} |" not in documented] == []
    assert all(f"{key}=" in documented for key in OPTIONS)


# ---- columns ---------------------------------------------------------------------------------------------------------

TEXTS = ("", "yes", "no, 1,234,567 refused", "no limit", "11.43 GiB", "the beginning", "same settings,", "99.9 %")


@pytest.mark.parametrize("count", [1, 2, 3])
def test_rows_are_laid_out_as_rich_lays_them_out(count):
    for label, *values in product(("retries: full, cache given back", "  segments", "fits"), *[TEXTS] * count):
        table = RichTable.grid()
        table.add_column(width=32)
        for _ in values:
            table.add_column(width=16, justify="right")
        table.add_row(label, *values)
        shown = io.StringIO()
        Console(file=shown, width=80, color_system=None, force_terminal=False).print(table)
        columns = (Column(title="", align=Align.LEFT, width=32), *[Column(title="", width=16)] * count)
        ours = plain_text(Document(title="t", blocks=[Table(columns, [(label, *values)], has_titles=False)]))
        assert ours.splitlines() == [line.rstrip() for line in shown.getvalue().splitlines()]


# ---- lines of code ---------------------------------------------------------------------------------------------------


def with_stacks() -> dict:
    """60 MiB of a line, 12 MiB of another in two blocks, and 50 MiB that a third is refused on a card of 100 MiB."""
    history = recorded([], capacity_bytes=100 * MIB)
    for line, size in ((3, 60), (8, 6), (8, 6), (21, 50)):
        history.allocator.frames = [{"filename": "/job/<b>$x$.py", "line": line, "name": "step"}]
        history.do((ALLOC, size * MIB, 0))
    return history.snapshot()


def test_the_lines_that_hold_the_memory_are_named(run, tmp_path):
    file = tmp_path / "run.pickle"
    file.write_bytes(pickle.dumps(with_stacks()))
    code, out, _ = run(file)
    assert code == EXIT_OK
    text = " ".join(out.split())
    assert "Who holds the 72.0 MiB that are allocated when it ran out of memory first, at entry 5:" in text
    assert "/job/<b>$x$.py:3 step 60.0 MiB 83.3 % 1" in text
    assert "1 other line and the rests of blocks hold 12.0 MiB." in text
    assert "Refused: 50.0 MiB, requested by: /job/<b>$x$.py:21 step." in text


def test_the_lines_are_plain_values_as_json(run, tmp_path):
    file = tmp_path / "run.pickle"
    file.write_bytes(pickle.dumps(with_stacks()))
    _, out, _ = run(file, "format=json")
    [found] = json.loads(out)["snapshots"]
    held = found["held"]
    assert [(each["line"], each["size_bytes"] // MIB, each["blocks"]) for each in held["lines"]] == [
        (3, 60, 1), (8, 12, 2),
    ]  # fmt: skip
    assert (held["is_out_of_memory"], held["largest"], held["refused"]["line"]) == (True, 1, 21)
    curve = found["recorded"]["curve"]
    assert max(curve["reserved_bytes"]) == found["recorded"]["peak_reserved_bytes"]
    assert max(curve["allocated_bytes"]) == found["recorded"]["peak_allocated_bytes"]


def test_a_snapshot_without_stacks_says_how_to_record_them(run, path):
    assert "the snapshot has no stacks" in " ".join(run(path)[1].split())
