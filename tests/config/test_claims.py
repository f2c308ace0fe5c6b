"""The list of claims is read strictly: every fault is found, with its place."""

import pytest

from profiler.config.claims.claims import read_claims
from profiler.domain.claims import By, Check, End, Line, Pair, Range, Single
from profiler.domain.errors import UsageError
from profiler.domain.text import sum_of
from profiler.storage.foreign.published import read_published_claims

HEAD = """
sources: {text: {title: A text, where: a place}}
setups:
  one: {by: trial, keys: {model: qwen2.5-0.5b}}
  job: {by: verl, gpu: a100-40gb, keys: {actor_rollout_ref.model.path: qwen2.5-7b}}
claims:
"""
CHANGE = """
  - id: batch
    source: text
    says: Half the batch saves memory.
    figure: -40 %
    check: change
    quantity: peak_allocated
    claimed: {from: -45, to: -35}
    tolerance: 5
    setup: one
    settings:
      - {when: "0.5B", with: {beta: 0.04}, before: {}, after: {per_device_train_batch_size: 8}}
"""


def read(text, published=("row",)):
    return read_claims(HEAD + text, published=published)


def faults_of(text):
    with pytest.raises(UsageError) as raised:
        read(text)
    return [fault.sentence() for fault in raised.value.faults]


def claim(check, *lines):
    head = f"\n  - {{id: c, source: text, says: It is so., figure: so, check: {check}, "
    return head + ", ".join(lines) + "}\n"


def test_a_change_has_both_configurations_with_the_keys_of_its_setup():
    (found,) = read(CHANGE)
    assert (found.check, found.claimed, found.tolerance) == (Check.CHANGE, Range(low=-45, high=-35), 5)
    (pair,) = found.settings
    assert isinstance(pair, Pair)
    assert pair.before.keys == {"model": "qwen2.5-0.5b", "beta": 0.04}
    assert pair.after.keys == {**pair.before.keys, "per_device_train_batch_size": 8}


def test_the_card_of_a_job_of_verl_can_differ_per_setting():
    setting = "{when: a, claimed: fits, trial: {gpu: rtx-3090-24gb}}"
    (found,) = read(claim("value", f"quantity: peak, unit: GB, tolerance: 0, setup: job, settings: [{setting}]"))
    (single,) = found.settings
    assert isinstance(single, Single)
    assert (single.configuration.by, single.configuration.gpu, single.claimed) == (By.VERL, "rtx-3090-24gb", End.FITS)
    assert "gpu" not in single.configuration.keys


def test_a_sum_is_computed_and_not_trusted():
    (found,) = read(
        claim("arithmetic", "unit: GB, tolerance: 0.1, lines: [{when: a, sum: (24 + 6) / 4 + 2, printed: 9}]")
    )
    (line,) = found.settings
    assert isinstance(line, Line)
    assert (line.value, line.printed) == (9.5, 9)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (CHANGE.replace("source: text", "source: tex"), "batch.source=tex: must be one of text. Did you mean 'text'?"),
        (CHANGE.replace("check: change", "check: chang"), "batch.check=chang: must be one of value, change, enables"),
        (CHANGE.replace("tolerance: 5", "tolerance: much"), "batch.tolerance=much: must be a number of at least 0"),
        (CHANGE.replace("    tolerance: 5\n", ""), "batch.tolerance=null: is needed here"),
        (CHANGE.replace("figure:", "figur: 1\n    figure:"), "batch.figur=1: Did you mean 'figure'?"),
        (
            CHANGE.replace("{from: -45, to: -35}", "{from: -35, to: -45}"),
            "batch.claimed={from:-35,to:-45}: must be a number",
        ),
        (
            CHANGE.replace("peak_allocated", "training_peak"),
            "batch.quantity=training_peak: is not a quantity of setup trial",
        ),
        (CHANGE.replace("beta: 0.04", "bet: 0.04"), "batch.settings[1].before.bet=0.04"),
        (CHANGE.replace("size: 8", "size: 0"), "batch.settings[1].after."),
        (CHANGE.replace("beta: 0.04", "num_processes: 2"), "a sweep runs several GPUs with backend=cuda or emulated"),
        (CHANGE.replace("{per_device_train_batch_size: 8}", "{}"), "has the same configuration before and after"),
        (CHANGE.replace("setup: one", "setup: ones"), "batch.setup=ones: must be one of one, job. Did you mean"),
        (CHANGE + CHANGE, "claims=batch: is the id of two claims"),
        (claim("undecidable", "because: ' '"), "c.because=' ': must be a reason"),
        (claim("arithmetic", "unit: GB, tolerance: 1, lines: [{when: a, sum: open(1), printed: 9}]"), "must be a sum"),
        (
            claim("looked_up", "settings: [{when: a, look: {repository: a/b, version: v1, path: p, pattern: '('}}]"),
            "not a regular",
        ),
        (
            claim("value", "quantity: weights, unit: GB, tolerance: 1, setup: one, settings: [{when: a, trial: {}}]"),
            "needs either `claimed` or `published`",
        ),
        (
            claim(
                "value",
                "quantity: weights, unit: GB, tolerance: 1, setup: one",
                "settings: [{when: a, trial: {}, published: ro}]",
            ),
            "c.published=ro: is not an id of measurements.csv. Did you mean 'row'?",
        ),
        ("  []", "claims=[]: must be a list of at least one entry"),
    ],
)
def test_a_wrong_list_is_refused_with_the_place_of_the_fault(text, expected):
    assert [sentence for sentence in faults_of(text) if expected in sentence]


def test_all_faults_are_found_at_once():
    text = CHANGE.replace("tolerance: 5", "tolerance: -1").replace("source: text", "source: none")
    assert len(faults_of(text)) == 2


def test_text_that_is_no_yaml_is_a_fault():
    with pytest.raises(UsageError, match=r"claims\.yaml=\(text\): is not valid YAML"):
        read_claims("claims: [", published=())


@pytest.mark.parametrize("text", ["1 +", "a", "f(1)", "1 / 0", "2 ** 999", "(" * 500, "'a' * 3", "True + 1", "1 < 2"])
def test_other_things_than_sums_have_no_value(text):
    with pytest.raises(ValueError, match=r".+"):
        sum_of(text)


def test_a_sum_follows_the_order_of_operations():
    assert sum_of("100 * (1 - 0.5 * 2 ** -1) - -3") == 78


def test_every_claim_of_the_five_texts_is_kept():
    claims = read_published_claims()
    assert {claim.source.id for claim in claims} == {
        "blog-2025",
        "guide-40gb",
        "article-trl",
        "report-verl",
        "guide-verl",
    }
    assert {claim.check for claim in claims} == set(Check)
    assert all(claim.because for claim in claims if claim.check is Check.UNDECIDABLE)
