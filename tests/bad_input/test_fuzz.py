"""Random keys, values and YAML: exit codes 0 and 2 only, and one line per fault."""

import io
import os
from contextlib import chdir, redirect_stderr, redirect_stdout

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sweep_fakes import FakeWorld

from profiler.domain.trials.trial import SPEC_KEYS
from profiler.estimate.main import main as estimate
from profiler.replay.main import main as replay
from profiler.sweep.main import main as sweep

EXAMPLES = int(os.environ.get("FUZZ_EXAMPLES", "0"))
"""More examples than usual, and others at each run."""

FUZZ = settings(
    max_examples=EXAMPLES or 150,
    derandomize=not EXAMPLES,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)

# A hub id would ask the hub.
TEXTS = st.text(max_size=30).filter(lambda text: "/" not in text)
MARKS = (*"[]{},:?-&*!|>'\"%@`=~$\\#<", "${", "<<", "!!int", "!!set", "&a", "*a", "0x", "1e9", ".nan", "null", "true")
SHARP = st.sampled_from([*MARKS, "\x00", "\x1b", "\udcff"])
VALUES = st.one_of(
    TEXTS,
    st.integers().map(str),
    st.floats().map(str),
    st.lists(SHARP, max_size=6).map("".join),
    st.lists(SHARP | TEXTS, max_size=4).map(" ".join),
)
KEYS = st.one_of(st.sampled_from(SPEC_KEYS), st.sampled_from(SPEC_KEYS), TEXTS)
WORDS = st.lists(st.tuples(KEYS, VALUES).map("=".join) | VALUES, max_size=4)

SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | TEXTS | SHARP
TREES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(SPEC_KEYS) | TEXTS, inner, max_size=4),
    max_leaves=12,
)
YAML = st.one_of(
    TREES.map(repr), TEXTS, st.lists(SHARP | TEXTS | st.just("\n") | st.just("\n  "), max_size=12).map(" ".join)
)


def outcome(main, words):
    """Exit code and the lines on standard error."""
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        code = main(words)
    return code, err.getvalue().splitlines()


def check(main, words):
    code, lines = outcome(main, words)
    assert code in (0, 2), lines
    faults = [line for line in lines if not line.startswith("Ignored, because")]
    assert bool(faults) == (code == 2), lines
    assert len(lines) == len(set(lines)), lines
    assert all(line.isprintable() for line in lines), lines


@FUZZ
@given(words=WORDS)
def test_words_of_an_estimate(words):
    check(estimate, ["model=tiny", *words])


@FUZZ
@given(text=YAML)
def test_a_configuration_of_an_estimate(text, tmp_path):
    path = tmp_path / "f.yaml"
    path.write_bytes(text.encode(errors="surrogatepass"))
    check(estimate, [f"config={path}", "model=tiny"])


@FUZZ
@given(tree=TREES)
def test_a_configuration_of_verl(tree, tmp_path):
    path = tmp_path / "f.yaml"
    path.write_bytes(f"actor_rollout_ref: {tree!r}".encode(errors="surrogatepass"))
    check(estimate, [f"config={path}"])


@settings(FUZZ, max_examples=EXAMPLES or 40)
@given(words=WORDS)
def test_words_of_a_sweep(words, tmp_path):
    with chdir(tmp_path):
        check(lambda given: sweep(given, parts=FakeWorld().parts()), ["+grid=logprobs", "dry_run=true", *words])


@settings(FUZZ, max_examples=EXAMPLES or 40)
@given(text=YAML)
def test_a_grid_of_a_sweep(text, tmp_path):
    path = tmp_path / "grid" / "mine.yaml"
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(f"# @package _global_\n{text}".encode(errors="surrogatepass"))
    with chdir(tmp_path):
        check(lambda given: sweep(given, parts=FakeWorld().parts()), ["-cd", ".", "+grid=mine", "dry_run=true"])


@FUZZ
@given(content=st.binary(max_size=60) | st.binary(max_size=40).map(lambda found: b"\x80\x04" + found + b"."))
def test_a_snapshot_of_a_replay(content, tmp_path):
    path = tmp_path / "f.pickle"
    path.write_bytes(content)
    check(replay, [os.fspath(path)])


def test_the_check_sees_several_lines(monkeypatch):
    """The check of this file fails for a command that prints a fault as several lines."""
    monkeypatch.setattr("profiler.domain.errors.Fault.sentence", lambda _: "same\nsame")
    with pytest.raises(AssertionError):
        check(estimate, ["model=tiny", "seed=x"])
