"""The table of tried scripts in docs/explanation/scripts_tried.md has the kept results."""

import csv
import re
from itertools import accumulate
from pathlib import Path

import pytest

from profiler.domain.memory import GIB

ROOT = Path(__file__).parents[1]
TRIED = list(csv.DictReader((ROOT / "results/reference/scripts/tried.csv").read_text().splitlines()))
PUBLIC = list(csv.DictReader((ROOT / "results/reference/scripts/public.csv").read_text().splitlines()))
COMMANDS = list(csv.DictReader((ROOT / "results/reference/scripts/commands.csv").read_text().splitlines()))
COLUMN = {"simulated": 3, "emulated": 4}


def shown(row: dict[str, str]) -> str:
    if row["status"] in ("failed", "unsupported", "timeout"):
        return row["status"]
    peaks = f"{int(row['allocated_bytes']) / GIB:.3f} / {int(row['reserved_bytes']) / GIB:.3f}"
    return f"out of memory, {peaks}" if row["status"] == "oom" else peaks


@pytest.mark.parametrize("row", TRIED, ids=lambda row: f"{row['script']}-{row['backend']}")
def test_a_row_is_in_the_table(row: dict[str, str]) -> None:
    lines = (ROOT / "docs/explanation/scripts_tried.md").read_text().splitlines()
    line = next(line for line in lines if line.startswith(f"| {row['script']} | {row['source']} |"))
    assert line.split(" | ")[COLUMN[row["backend"]] - 1].strip(" |") == shown(row)


def test_both_backends_agree_where_both_ran() -> None:
    """Allocated memory of the two differs by less than one part in 2,000, as the page says."""
    by_script: dict[str, list[int]] = {}
    for row in TRIED:
        if row["status"] == "ok":
            by_script.setdefault(row["script"], []).append(int(row["allocated_bytes"]))
    both = [found for found in by_script.values() if len(found) == 2]
    assert len(both) >= 8
    assert all(max(found) / min(found) < 1 + 1 / 2000 for found in both)


@pytest.mark.parametrize("row", PUBLIC, ids=lambda row: f"{row['repository']}-{row['path']}")
def test_a_public_script_is_in_its_table(row: dict[str, str]) -> None:
    lines = (ROOT / "docs/explanation/scripts_tried.md").read_text().splitlines()
    line = next(line for line in lines if line.startswith(f"| {row['repository']} {row['commit']} | {row['path']} |"))
    assert line.split(" | ")[2] == shown(row)
    assert bool(line.split(" | ")[3].strip(" |")) == (row["status"] != "ok") == bool(row["message"])


def test_the_page_counts_the_public_scripts() -> None:
    ran, projects = sum(row["status"] == "ok" for row in PUBLIC), len({row["repository"] for row in PUBLIC})
    assert len(PUBLIC) >= 30
    assert projects >= 10
    sentence = f"Of {len(PUBLIC)} scripts of {projects} projects, {ran} ran"
    assert sentence in (ROOT / "docs/explanation/scripts_tried.md").read_text()


def peaks_of(row: dict[str, str], prefix: str = "") -> str:
    kinds = ("allocated", "reserved")
    sizes = [row[f"{prefix}{kind}_bytes"] for kind in kinds]
    return " / ".join(f"{int(size) / GIB:.3f}" for size in sizes if size)


@pytest.mark.parametrize("row", COMMANDS, ids=lambda row: f"{row['trainer']}-{row['job']}-{row['role']}")
def test_a_command_is_in_its_table(row: dict[str, str]) -> None:
    cells = [
        row["trainer"],
        row["job"],
        row["cards"],
        row["role"],
        peaks_of(row),
        peaks_of(row, "estimated_"),
        f"{row['wall_s']} s",
    ]
    line = "| " + " | ".join(cells) + " |"
    assert line in (ROOT / "docs/explanation/scripts_tried.md").read_text().splitlines()


def errors_of(rows: list[dict[str, str]]) -> dict[str, list[float]]:
    """Return how far estimates are from runs, as a part of these, by kind and the lowest first."""
    answered = [row for row in rows if row["estimated_allocated_bytes"]]
    return {
        kind: sorted(int(row[f"estimated_{kind}_bytes"]) / int(row[f"{kind}_bytes"]) - 1 for row in answered)
        for kind in ("allocated", "reserved")
    }


OF_OPENRLHF = [row for row in COMMANDS if row["trainer"].startswith("OpenRLHF")]
ALONE = [row for row in COMMANDS if row not in OF_OPENRLHF and row["cards"] == "1"]
SHARED = [row for row in COMMANDS if row not in OF_OPENRLHF and row["cards"] == "2"]


def test_the_estimate_of_openrlhf_is_as_far_as_said() -> None:
    """Allocated memory of all nine is too low: by less than 0.2 % in six, and up to 0.7 % in the others."""
    errors = errors_of([row for row in OF_OPENRLHF if not row["job"].startswith("DPO")])
    assert len(errors["allocated"]) == 9
    assert errors["allocated"][:3] == pytest.approx([-0.007, -0.007, -0.004], abs=0.0005)
    assert -0.002 < errors["allocated"][3] < errors["allocated"][-1] < 0
    assert (errors["reserved"][0], errors["reserved"][-1]) == pytest.approx((-0.19, 0.105), abs=0.003)


def test_the_estimate_of_openrlhfs_dpo_is_as_far_as_said() -> None:
    rows = [row for row in OF_OPENRLHF if row["job"].startswith("DPO")]
    errors = errors_of(rows)
    assert len(errors["allocated"]) == 9
    assert errors["allocated"][:3] == pytest.approx([-0.0122, -0.0067, -0.0044], abs=0.0001)
    assert -0.002 < errors["allocated"][3] < errors["allocated"][-1] == pytest.approx(-0.0001, abs=0.00005)
    assert (errors["reserved"][0], errors["reserved"][-1]) == pytest.approx((-0.098, 0.180), abs=0.001)
    # What is refused, and why: 494 MB of shards are on the host.
    (refused,) = (row for row in rows if not row["estimated_allocated_bytes"])
    (alike,) = (row for row in rows if f"{row['job']}, ref.offload" == refused["job"])
    assert int(alike["allocated_bytes"]) - int(refused["allocated_bytes"]) == pytest.approx(494_032_768, rel=0.0001)


def test_ranks_differ_by_tensors_of_which_two_have_a_part() -> None:
    """Peaks of backward of OpenRLHF's Llama-3-8B on ranks 0 to 3, and whole tensors of four parts by its shapes."""
    peaks = [57159826432, 57099009024, 57182895104, 57075940352]
    hidden, inner, table = 4096, 14336, 128256 * 4096
    layer = [hidden * hidden, hidden * 1024, hidden * 1024, hidden * hidden, *[hidden * inner] * 3]
    tensors = [table, *layer * 32, table]
    part = -(-sum(tensors) // len(peaks))
    ends = list(accumulate(tensors))
    kept = [
        sum(
            size
            for size, end in zip(tensors, ends, strict=True)
            if end > part * rank and end - size < part * (rank + 1)
        )
        for rank in range(len(peaks))
    ]
    assert [peak - peaks[0] for peak in peaks] == [2 * (size - kept[0]) for size in kept]
    assert max(peaks) - min(peaks) == pytest.approx(0.1 * GIB, rel=0.01)


def test_the_estimate_is_as_far_from_other_trainers_as_said() -> None:
    """On one card all but four are within 0.5 % of allocated memory; four reserve more than is said, and two less."""
    errors = errors_of(ALONE)
    assert len(errors["allocated"]) == 20
    assert sum(abs(error) < 0.005 for error in errors["allocated"]) == 16
    assert errors["allocated"][-2:] == pytest.approx([0.006, 0.027], abs=0.001)
    assert errors["allocated"][:2] == pytest.approx([-0.023, -0.012], abs=0.001)
    assert errors["reserved"][:4] == pytest.approx([-0.064, -0.063, -0.057, -0.057], abs=0.001)
    assert errors["reserved"][-2:] == pytest.approx([0.081, 0.149], abs=0.001)
    of_pairs = errors_of([row for row in ALONE if row["job"].startswith(("DPO", "KTO"))])["allocated"]
    assert len(of_pairs) == 11
    assert -0.005 < of_pairs[0] < of_pairs[-1] < 0.001


def test_full_training_by_axolotl_is_as_far_as_said() -> None:
    full = [row for row in ALONE if row["trainer"].startswith("axolotl") and ", full," in row["job"]]
    assert errors_of(full)["allocated"] == pytest.approx([-0.0233, -0.0033, -0.0002, -0.0002], abs=0.0001)


def test_preferences_on_two_cards_are_as_far_as_said() -> None:
    """By ZeRO-2 with their own files, and by ZeRO-3 with those of the programs and with DeepSpeed's sizes."""

    def found(what: str, *, plain: bool) -> list[float]:
        rows = [row for row in SHARED if what in row["job"] and ("default sizes" in row["job"]) == plain]
        return errors_of(rows)["allocated"]

    assert found("ZeRO-2", plain=False) == pytest.approx([-0.0033, -0.0019, 0.0, 0.0009, 0.0349], abs=0.0001)
    assert found("ZeRO-2", plain=True) == pytest.approx([-0.0022], abs=0.0001)
    assert found("ZeRO-3", plain=False) == pytest.approx([0.0671, 0.1200], abs=0.0001)
    assert found("ZeRO-3", plain=True) == pytest.approx([-0.0108, -0.0048, 0.0003, 0.0005], abs=0.0001)
    reserved = errors_of(SHARED)["reserved"]
    assert (reserved[0], reserved[-1]) == pytest.approx((-0.019, 0.366), abs=0.001)


ABSOLUTE = re.compile(r"(?<![\w./:])/\w[\w.-]*/")
"""The beginning of a path from the root; addresses and relative paths have none."""


@pytest.mark.parametrize(
    ("text", "found"), [("in /home/a/b.py", True), ("(/opt/x/y", True), ("https://a.b/c/", False), ("a/b/c", False)]
)
def test_a_path_from_the_root_is_recognised(text: str, found: bool) -> None:
    assert bool(ABSOLUTE.search(text)) == found


def test_no_message_has_a_path_of_a_machine() -> None:
    assert not [row["message"] for row in PUBLIC if ABSOLUTE.search(row["message"])]
