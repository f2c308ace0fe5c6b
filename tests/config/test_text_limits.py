"""Limits of texts that others wrote: size, depth, number of values."""

import sys
import time

import pytest

from profiler.config.foreign_text import (
    MOST_DEPTH,
    MOST_JSON_BYTES,
    MOST_NODES,
    MOST_YAML_BYTES,
    ForeignTextError,
    parse_json,
    parse_python,
    parse_toml,
    parse_yaml,
)


def test_what_is_within_the_limits_is_read():
    assert parse_yaml("a: [1, 2.5, true, null, text, '1']") == {"a": [1, 2.5, True, None, "text", "1"]}
    assert parse_yaml("") is None
    assert parse_yaml("[" * MOST_DEPTH + "]" * MOST_DEPTH)
    assert len(parse_yaml("- a\n" * (MOST_NODES - 1))) == MOST_NODES - 1
    assert parse_json(b"[" * MOST_DEPTH + b"]" * MOST_DEPTH)
    assert parse_json(b'{"a": [1, null]}') == {"a": [1, None]}


def test_a_merged_mapping_may_change_a_key():
    assert parse_yaml("a: &x {k: 1, m: 2}\nb: {<<: *x, k: 3}")["b"] == {"k": 3, "m": 2}


def test_equal_texts_with_and_without_quotes_are_different_keys():
    assert parse_yaml("1: a\n'1': b") == {1: "a", "1": "b"}


def test_an_alias_counts_as_what_it_repeats():
    half = "a: &a [" + "x," * (MOST_NODES // 2 - 5) + "]\n"
    assert parse_yaml(half + "b: *a")
    with pytest.raises(ForeignTextError, match="more than 100,000 values"):
        parse_yaml(half + "b: *a\nc: *a")


def test_a_key_may_come_again_with_its_value():
    """Of wauwau0977/FineTuningTrial: axolotl reads such a file, as PyYAML does."""
    assert parse_yaml("a: true\nb: {c: 1, c: 1}\na: true") == {"a": True, "b": {"c": 1}}


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[" * (MOST_DEPTH + 1) + "]" * (MOST_DEPTH + 1), "nested more than 64 deep"),
        ("- a\n" * (MOST_NODES + 1), "more than 100,000 values"),
        ("'" + "x" * MOST_YAML_BYTES + "'", "more than 1 MiB"),
        ("&a [*a]", r"contains itself, by its alias \*a"),
        ("a: &b {c: *b}", r"contains itself, by its alias \*b"),
        ("a: 1\na: 2", "the key 'a' twice, in lines 1 and 2"),
        ("a: 1\na: '1'", "the key 'a' twice, in lines 1 and 2"),
        ("a: 1\na:", "the key 'a' twice, in lines 1 and 2"),
        ("a: [1]\na: [1]", "the key 'a' twice, in lines 1 and 2"),
        ("b: 0\na: 1\n\na: 2", "the key 'a' twice, in lines 2 and 4"),
        ("{a: 1, a: 2}", "the key 'a' twice, in lines 1 and 1"),
        ("a\n---\nb", "several YAML documents"),
        ("2020-13-45", "month must be in 1..12"),
        ("1" + ":1" * 1000, "more than 1000 digits"),
        ("!!int", "its form or its tag"),
        ("!!bool x", "its form or its tag"),
        ("a: [", "not valid YAML"),
        ("\udcff", "not valid YAML"),
    ],
)
def test_what_exceeds_a_limit_or_is_no_yaml_is_refused(text, problem):
    started = time.process_time()
    with pytest.raises(ForeignTextError, match=problem):
        parse_yaml(text)
    assert time.process_time() - started < 5


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (b"[" * (MOST_DEPTH + 1) + b"]" * (MOST_DEPTH + 1), "nested more than 64 deep"),
        (b'{"a":' * 100_000, "nested more than 64 deep"),
        (b'"' + b"x" * MOST_JSON_BYTES + b'"', "more than 10 MiB"),
        (b"9" * 5000, "as JSON"),
        (b"\xff", "as JSON"),
        (b"", "as JSON"),
    ],
)
def test_what_exceeds_a_limit_or_is_no_json_is_refused(text, problem):
    with pytest.raises(ForeignTextError, match=problem):
        parse_json(text)


@pytest.fixture(params=[1000, 20_000])
def recursion_limit(request):
    """The limit of Python, and one that another library has raised: torch's compiler does."""
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(request.param)
    yield
    sys.setrecursionlimit(before)


DEEP = MOST_DEPTH + 1


@pytest.mark.usefixtures("recursion_limit")
@pytest.mark.parametrize("depth", [DEEP, 5000])
@pytest.mark.parametrize(
    ("parse", "text"),
    [
        (parse_yaml, "[{depth}"),
        (parse_json, "[{depth}"),
        (parse_json, '{"a":{depth}'),
        (parse_json, '["\\"[]]]",{depth}'),
        (parse_toml, "[{depth}"),
        (parse_toml, "{a={depth}"),
        (parse_toml, "[ # ]]\n{depth}"),
        (parse_toml, '["\\"]", \']\', """\n]"]""", {depth}'),
    ],
)
def test_depth_is_refused_whatever_the_recursion_limit(parse, text, depth):
    opened = text.removesuffix("{depth}") * depth
    content = f"a = {opened}" if parse is parse_toml else opened
    with pytest.raises(ForeignTextError, match=f"nested more than {MOST_DEPTH} deep"):
        parse(content.encode() if parse is parse_json else content)


@pytest.mark.usefixtures("recursion_limit")
def test_a_script_with_deep_brackets_is_refused_whatever_the_recursion_limit():
    with pytest.raises(ForeignTextError, match=r"nested too deep|not valid Python"):
        parse_python("x = " + "(" * 5000)


def test_brackets_of_texts_and_comments_are_no_depth():
    many = "[{" * MOST_DEPTH
    assert parse_json(f'{{"a": "{many}", "\\"": "{many}"}}'.encode()) == {"a": many, '"': many}
    lines = [f'a = "{many}"', f"b = '{many}'", f'c = """\n{many}"""', f"d = '''{many}'''", f"# {many}", 'e = "\\"{"']
    assert parse_toml("\n".join(lines)) == {**dict.fromkeys("abcd", many), "e": '"{'}
    assert parse_json(b"[" + b"[]," * MOST_DEPTH + b"1]")[-1] == 1
