"""docs/evidence.md compares the published rows `coursia-...` with the kept emulated and simulated peaks."""

import csv
from pathlib import Path

from profiler.domain.units import GIB
from profiler.storage.published import read_published

ROOT = Path(__file__).parents[1]
KEPT = list(csv.DictReader((ROOT / "results/reference/scripts/coursia.csv").read_text().splitlines()))
METRICS = ("allocated", "reserved")


def lines() -> list[str]:
    """The rows of the table: measured, and emulated with either trl, with the error of the emulation."""
    figures = {figure.id: figure.value for figure in read_published()}
    found = []
    for row in dict.fromkeys(each["published"] for each in KEPT):
        for metric in METRICS:
            measured = figures[f"{row}-{metric}"]
            assert measured is not None
            cells = [_emulated(row, metric, trl, measured) for trl in ("1.12.0", "1.6.0")]
            found.append(f"| `{row}` | {metric} | {measured:.3f} | {cells[0]} | {cells[1]} |")
    return found


def _emulated(row: str, metric: str, trl: str, measured: float) -> str:
    found = next((each for each in KEPT if (each["published"], each["trl"]) == (row, trl)), None)
    if found is None:
        return ""
    gib = int(found[f"{metric}_bytes"]) / GIB
    return f"{gib:.3f} ({(gib / measured - 1) * 100:+.2f} %)"


def test_every_published_row_is_in_the_table() -> None:
    page = (ROOT / "docs/evidence.md").read_text().splitlines()
    assert [line for line in page if line.startswith("| `coursia-")] == lines()
    assert len({each["published"] for each in KEPT}) == 6


def test_allocated_memory_is_as_measured_with_one_of_both_versions() -> None:
    figures = {figure.id: figure.value or 0 for figure in read_published()}
    for row in {each["published"] for each in KEPT}:
        measured = figures[f"{row}-allocated"]
        errors = [int(each["allocated_bytes"]) / GIB / measured - 1 for each in KEPT if each["published"] == row]
        assert min(map(abs, errors)) < 0.001


def simulated_sentence() -> str:
    """How many emulated runs were simulated too, and how far the peaks differ."""
    found = [each for each in KEPT if each["simulated_allocated_bytes"]]
    equal = [all(each[f"{metric}_bytes"] == each[f"simulated_{metric}_bytes"] for metric in METRICS) for each in found]
    return f"{len(found)} of the {len(KEPT)} runs were simulated too; both peaks are equal to the byte in {sum(equal)}"


def test_the_page_says_how_the_simulation_compares() -> None:
    assert simulated_sentence() in " ".join((ROOT / "docs/evidence.md").read_text().split())


if __name__ == "__main__":
    print("\n".join([*lines(), simulated_sentence()]))
