"""Verdicts on claims: by hand, with figures that are given."""

import pytest

from profiler.analysis.verdicts import ClaimVerdict, Evidence, Figure, LookedUp, judge
from profiler.config.claims.claims import read_claims
from profiler.domain.claims import End
from profiler.domain.memory import Origin
from profiler.rendering.claims import found_text, reason_text, verdict_text

HEAD = """
sources: {text: {title: A text, where: a place}}
setups: {one: {by: trial, keys: {model: qwen2.5-0.5b}}}
claims:
  - {id: c, source: text, says: It is so., figure: so, """
CHANGE = "check: change, quantity: peak_allocated, claimed: -40, tolerance: 5, setup: one, settings: [%s]"
ROWS = "{when: %s, before: {}, after: {per_device_train_batch_size: %d}}"
VALUE = "check: value, quantity: %s, unit: %s, tolerance: 10, setup: one, settings: [{when: a, claimed: %s, trial: {}}]"


def claim(text):
    (found,) = read_claims(f"{HEAD}{text}}}\n", published=())
    return found


def judged(text, figures, looked_up=None):
    def figures_of(configurations, quantity):
        return [figures[each.keys.get("per_device_train_batch_size", 4)] for each in configurations]

    return judge(claim(text), Evidence(figures_of=figures_of, published={}, looked_up=looked_up or {}))


def figure(value, end=End.FITS, **changes):
    return Figure(value=value, end=end, origin=Origin.SIMULATED, **changes)


UNKNOWN = Figure(value=None, end=None, origin=None, problem="nothing has run")


@pytest.mark.parametrize(
    ("values", "verdict"),
    [
        ({4: figure(100), 8: figure(60), 12: figure(56)}, ClaimVerdict.HOLDS),
        ({4: figure(100), 8: figure(55), 12: figure(65)}, ClaimVerdict.HOLDS),
        ({4: figure(100), 8: figure(54), 12: figure(65)}, ClaimVerdict.ONLY_WHEN),
        ({4: figure(100), 8: figure(54), 12: figure(66)}, ClaimVerdict.DOES_NOT_HOLD),
        ({4: figure(100), 8: figure(60), 12: UNKNOWN}, ClaimVerdict.ONLY_WHEN),
        ({4: figure(100), 8: figure(90), 12: UNKNOWN}, ClaimVerdict.NOT_DECIDABLE),
        ({4: UNKNOWN, 8: figure(90), 12: figure(90)}, ClaimVerdict.NOT_DECIDABLE),
    ],
)
def test_a_change_holds_where_it_is_within_the_tolerance(values, verdict):
    found = judged(CHANGE % ", ".join((ROWS % ("eight", 8), ROWS % ("twelve", 12))), values)
    assert found.verdict is verdict


def test_the_words_of_a_change_have_the_computed_numbers():
    values = {4: figure(200), 8: figure(120), 12: figure(190)}
    found = judged(CHANGE % ", ".join((ROWS % ("eight", 8), ROWS % ("twelve", 12))), values)
    assert found_text(found) == "-40 to -5 %"
    assert verdict_text(found) == "holds only when: eight"
    assert reason_text(found) == (
        "Peak of allocated memory: eight: -40 %; twelve: -5 % (-40 % is claimed, give or take 5 points)."
    )


def test_a_value_is_compared_in_the_unit_of_the_claim():
    found = judged(VALUE % ("peak_reserved", "GB", "10"), {4: figure(10.9e9)})
    assert (found.verdict, found.findings[0].found) == (ClaimVerdict.HOLDS, 10.9)
    assert judged(VALUE % ("peak_reserved", "GiB", "10"), {4: figure(12e9)}).verdict is ClaimVerdict.DOES_NOT_HOLD
    per = judged(VALUE % ("weights", "bytes per parameter", "2"), {4: figure(400, parameters=200)})
    assert (per.verdict, per.findings[0].found) == (ClaimVerdict.HOLDS, 2)


@pytest.mark.parametrize(("end", "verdict"), [(End.OOM, ClaimVerdict.HOLDS), (End.FITS, ClaimVerdict.DOES_NOT_HOLD)])
def test_an_end_is_claimed_like_a_value(end, verdict):
    assert judged(VALUE % ("peak_reserved", "GB", "oom"), {4: figure(1, end)}).verdict is verdict


@pytest.mark.parametrize(
    ("before", "after", "verdict", "reason"),
    [
        (End.OOM, End.FITS, ClaimVerdict.HOLDS, "only the second fits"),
        (End.FITS, End.FITS, ClaimVerdict.DOES_NOT_HOLD, "both fit"),
        (End.OOM, End.OOM, ClaimVerdict.DOES_NOT_HOLD, "both run out of memory"),
    ],
)
def test_something_becomes_possible_if_only_the_second_fits(before, after, verdict, reason):
    text = f"check: enables, setup: one, settings: [{ROWS % ('eight', 8)}]"
    found = judged(text, {4: figure(1, before), 8: figure(1, after)})
    assert found.verdict is verdict
    assert reason in reason_text(found)


def test_a_sum_follows_within_its_tolerance():
    lines = "{when: a, sum: 14 + 14, printed: 28}, {when: b, sum: 16.8 / 4, printed: 4.4}"
    found = judged(f"check: arithmetic, unit: GB, tolerance: 0.1, lines: [{lines}]", {})
    assert [each.holds for each in found.findings] == [True, False]
    assert "b: 16.8 / 4 = 4.2 GB" in reason_text(found)


def test_a_look_up_that_nobody_made_decides_nothing():
    text = "check: looked_up, settings: [{when: a, look: {repository: a/b, version: v1, path: p, pattern: q}}]"
    assert judged(text, {}).verdict is ClaimVerdict.NOT_DECIDABLE
    kept = {("c", "a"): LookedUp(is_so=False, found="nowhere in 3 files")}
    found = judged(text, {}, kept)
    assert found.verdict is ClaimVerdict.DOES_NOT_HOLD
    assert reason_text(found) == "Looked up: a: nowhere in 3 files."


def test_what_cannot_be_decided_says_why():
    found = judged("check: undecidable, because: nothing has run", {})
    assert found.verdict is ClaimVerdict.NOT_DECIDABLE
    assert reason_text(found) == "Not decidable here, because nothing has run."


def test_many_settings_are_counted_and_the_farthest_is_named():
    rows = ", ".join(ROWS % (f"s{size}", size) for size in (8, 12, 16, 20))
    values = {4: figure(100), 8: figure(60), 12: figure(61), 16: figure(80), 20: figure(95)}
    assert "it is as claimed in 2 of 4 settings; the farthest is s20: -5 %" in reason_text(
        judged(CHANGE % rows, values)
    )
