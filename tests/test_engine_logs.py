"""What vLLM printed on real cards, compared with the parts of the closed form."""

from pathlib import Path

from maintenance.engine_logs import compared, table

ROOT = Path(__file__).parents[1]


def _pairs(one: str, other: str) -> list[tuple[float, float]]:
    pairs = ((getattr(log, one), getattr(log, other)) for log in compared())
    return [(left, right) for left, right in pairs if left is not None and right is not None]


def test_the_printed_parts_sum_to_the_part_of_the_card():
    pairs = _pairs("requested", "parts")
    assert len(pairs) >= 12
    assert all(abs(requested - parts) < 0.02 for requested, parts in pairs)


def test_weights_are_two_bytes_per_parameter_and_a_table_of_positions():
    pairs = _pairs("weights", "parameters")
    assert len(pairs) >= 8
    assert all(-0.01 < printed - counted < 0.04 for printed, counted in pairs)


def test_a_cache_has_the_bytes_of_its_blocks():
    pairs = _pairs("kv_cache", "blocks")
    assert len(pairs) >= 3
    assert all(abs(printed - counted) < 0.01 for printed, counted in pairs)


def test_the_page_has_the_table():
    assert table() in (ROOT / "docs/evidence.md").read_text()
