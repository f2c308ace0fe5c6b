"""docs/evidence.md compares the published rows `coursia-...` with the kept emulated and simulated peaks."""

import csv
from pathlib import Path

from profiler.domain.memory import GIB
from profiler.storage.foreign.published import read_published

ROOT = Path(__file__).parents[1]
KEPT = list(csv.DictReader((ROOT / "results/reference/scripts/coursia.csv").read_text().splitlines()))
METRICS = ("allocated", "reserved")
RELEASES = {
    "coursia-qlora-1.7b-96": "1.12.0",
    "coursia-qlora-8b-96": "1.12.0",
    "coursia-qlora-8b-g16-96": "1.9.2",
    "coursia-qlora-8b-160": "1.9.2",
    "coursia-qlora-8b-224": "1.9.2",
    "coursia-qlora-8b-288": "1.9.2",
}
"""The release of trl of each row: the one that it names, else the one that the publisher's script names."""


def lines() -> list[str]:
    """The rows of the table: measured, and emulated with either way of multiplying, with the error of the emulation."""
    figures = {figure.id: figure.value for figure in read_published()}
    found = []
    for row, trl in RELEASES.items():
        for metric in METRICS:
            measured = figures[f"{row}-{metric}"]
            assert measured is not None
            cells = " | ".join(_emulated(row, metric, trl, way, measured) for way in ("widened", "direct"))
            found.append(f"| `{row}` | {trl} | {metric} | {measured:.3f} | {cells} |")
    return found


def _emulated(row: str, metric: str, trl: str, four_bit: str, measured: float) -> str:
    """A decoded run; empty if none is kept."""
    wanted = (row, trl, "decoded", four_bit)
    found = [each for each in KEPT if tuple(each[key] for key in ("published", "trl", "rollout", "four_bit")) == wanted]
    if not found:
        return ""
    gib = int(found[0][f"{metric}_bytes"]) / GIB
    return f"{gib:.3f} ({(gib / measured - 1) * 100:+.2f} %)"


def test_every_published_row_is_in_the_table() -> None:
    page = (ROOT / "docs/evidence.md").read_text().splitlines()
    assert [line for line in page if line.startswith("| `coursia-")] == lines()
    assert {each["published"] for each in KEPT} == set(RELEASES)


def test_allocated_memory_is_as_measured() -> None:
    figures = {figure.id: figure.value or 0 for figure in read_published()}
    for row, trl in RELEASES.items():
        found = [each for each in KEPT if (each["published"], each["trl"]) == (row, trl)]
        assert found
        for each in found:
            assert abs(int(each["allocated_bytes"]) / GIB / figures[f"{row}-allocated"] - 1) < 0.001


def simulated_sentence() -> str:
    """How many emulated runs were simulated too, and how far the peaks differ."""
    found = [each for each in KEPT if each["simulated_allocated_bytes"]]
    equal = [all(each[f"{metric}_bytes"] == each[f"simulated_{metric}_bytes"] for metric in METRICS) for each in found]
    return f"{len(found)} of the {len(KEPT)} runs were simulated too; both peaks are equal to the byte in {sum(equal)}"


def test_the_page_says_how_the_simulation_compares() -> None:
    assert simulated_sentence() in " ".join((ROOT / "docs/evidence.md").read_text().split())


if __name__ == "__main__":
    print("\n".join([*lines(), simulated_sentence()]))
