"""The grammar of values on a command line: read as Hydra reads them, and written so that Hydra reads them back."""

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from hypothesis import given, settings
from hypothesis import strategies as st

from profiler.config.options.value_grammar import (
    CallError,
    ValueTextError,
    read_path,
    read_ratio,
    read_value,
    read_values,
    written,
)

_HYDRA = OverridesParser.create()

TOKENS = st.sampled_from(
    (
        *"ab-10_.,[]{}:\"+e~#$/%=()'\t ",
        *("10", "b_", "\\", "\\\\", "E", "nan", "inf", "null", "NULL", "true", "False", "${", "a.b"),
        *("1e3", ".5", "0x1", "1_0", "on", "range(1,3)", "\\,", "\\ "),
    )
)
TEXTS = st.lists(TOKENS, max_size=9).map("".join)
SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8)
KEYS = st.from_regex(r"[a-z][a-z ,:=\\]{0,4}[a-z]", fullmatch=True)
TREES = st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3))


def by_hydra(text):
    """The values of an override; None where Hydra refuses it."""
    try:
        override = _HYDRA.parse_override(f"key={text}")
        return tuple(override.sweep_iterator()) if override.is_sweep_override() else (override.value(),)
    except (HydraException, ValueError, RecursionError):
        return None


def plain(value):
    """A value of Hydra without its marks of quotes."""
    if isinstance(value, list):
        return [plain(each) for each in value]
    if isinstance(value, dict):
        return {plain(key): plain(each) for key, each in value.items()}
    return getattr(value, "text", value)


@settings(max_examples=400)
@given(text=TEXTS)
def test_what_hydra_reads_is_read_alike(text):
    found = by_hydra(text)
    # Hydra keeps blanks after a colon at the end of a text.
    if found is None or any(f":{blank}" in f"{text} " for blank in "\t"):
        return
    try:
        values = read_values(text)
    except CallError:
        return
    assert repr([_stripped(each) for each in map(plain, found)]) == repr([_stripped(each) for each in values])


def _stripped(value):
    return value.rstrip(" \t") if isinstance(value, str) and value.rstrip(" \t").endswith(":") else value


@settings(max_examples=300)
@given(value=TREES)
def test_a_value_that_is_written_is_read_back_here_and_by_hydra(value):
    assert repr(read_value(written(value))) == repr(value)
    assert repr(plain(by_hydra(written(value))[0])) == repr(value)


@settings(max_examples=200)
@given(text=st.text(max_size=20) | TEXTS)
def test_any_text_is_a_value_or_one_sentence(text):
    try:
        read_values(text)
    except ValueTextError as error:
        assert "\n" not in str(error)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1:30", "1:30"),
        ("0400", "0400"),
        ("010", "010"),
        ("0x10", "0x10"),
        ("0o17", "0o17"),
        ("on", "on"),
        ("yes", "yes"),
        ("~", "~"),
        ("2024-01-01", "2024-01-01"),
        ("1e3", 1000.0),
        ("1_000", 1000),
        (".5", 0.5),
        ("5.", 5.0),
        ("+4", 4),
        ("NULL", None),
        ("TRUE", True),
        ("", ""),
        ("  4 ", 4),
        ("'4'", "4"),
        ('"a,b"', "a,b"),
        (r"a\,b", "a,b"),
        ("[a, [1, null]]", ["a", [1, None]]),
        ("{a:1,b:[x]}", {"a": 1, "b": ["x"]}),
        ("[]", []),
        ("expandable_segments:True", "expandable_segments:True"),
        ("~/größe/a #1", "~/größe/a #1"),
        ("/data/run=3", "/data/run=3"),
        ("${oc.env:HOME,x}/y", "${oc.env:HOME,x}/y"),
        ("!!int 4", "!!int 4"),
        ("&a", "&a"),
        ("٣", "٣"),
    ],
)
def test_values_by_hand(text, value):
    assert repr(read_value(text)) == repr(value)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("a,b", "a comma outside"),
        ("[a", "a list that is not closed"),
        ("[a,]", "an empty part"),
        ("{a}", "a mapping without 'key:value'"),
        ("a]", "where a value has ended"),
        ("'a", "a quote (') that is not closed"),
        ("don't", "within a text"),
        ("a[0]", "within a text"),
        ("range(1,3)", "calls a function"),
        ("[" * 65, "more than 64 deep"),
        ("9" * 1001, "more than 1000 digits"),
        ("a" * 1_048_577, "characters, and at most"),
    ],
)
def test_what_is_no_value(text, problem):
    with pytest.raises(ValueTextError, match=problem.replace("(", r"\(").replace(")", r"\)")):
        read_value(text)


def test_a_path_is_taken_as_it_stands():
    for text in ("2024", "010", "a,b", "dir (1)", "true", "~", "[x]", "it's"):
        assert read_path(text) == text
    assert read_path(" 'my results' ") == "my results"
    assert read_path("null") is None
    assert read_path("'null'") == "null"


def test_a_percentage_is_a_ratio():
    assert read_ratio("5%") == 0.05
    assert read_ratio(" 5 % ") == 0.05
    assert read_ratio("0.05") == 0.05
    assert read_ratio("010%") == "010%"
    assert read_ratio("true%") == "true%"
