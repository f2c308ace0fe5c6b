"""What is read of a script is what bash passes on, for scripts that need nothing of the machine."""

import contextlib
import shutil
import subprocess

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from profiler.config.foreign_text import ForeignTextError
from profiler.config.shell.run_script import read_run_script

BASH = shutil.which("bash")
pytestmark = pytest.mark.skipif(BASH is None, reason="needs bash")

PROGRAM = "python3() { printf '%s\\0' \"$@\"; }\n"
CALL = '\npython3 -m verl.trainer.main_ppo data.a="$A" data.b=$B data.c=${C:-none} "${LIST[@]}" $REST\n'


def as_bash(text):
    """The overrides that bash passes, without any program to call and without any variable."""
    done = subprocess.run(
        [BASH, "--norc", "-c", PROGRAM + text],
        env={"PATH": "/nonexistent"},
        cwd="/",
        capture_output=True,
        timeout=300,
        check=False,
    )
    words = done.stdout.decode().split("\0")
    return {word.partition("=")[0]: word.partition("=")[2] for word in words if "=" in word}


def known(text):
    return {key: found.text for key, found in read_run_script(text).overrides.items() if found.is_known}


SCRIPTS = [
    "A=1; B=2",
    "A='x y' B=\"$A\"",
    "A=${B:-1}; B=${A:-2}",
    'A=1\nif [ "$A" -eq 1 ]; then B=2; elif [ "$A" = 2 ]; then B=3; else B=4; fi',
    "case ${A:-b} in a) B=1 ;; [bc]) B=2 ;; *) B=3 ;; esac",
    "case x.y in (x?y) A=1;; esac",
    "LIST=(data.d=1 'data.e=2 3' # a comment\n \"data.f=$A\")\nLIST+=(data.g=4)",
    "REST='data.d=1 data.e=2'",
    "A=$((3 * (4 + 5) % 7)); B=$((A / 2))",
    "f() { A=$1; B=${2:-9}; }\nf 5",
    "A=1 && B=2 || C=3",
    "! true || A=1",
    "false && A=1\nB=${A:-2}",
    "{ A=1; }; (B=2); C=${B:-3}",
    'A=a\\\nb; B="a\\\nb"',
    'A="a\\"b\\$c\\d"; B=\'a\\b\'',
    "# A=1 \\\nA=2",
    "for i in 1 2 3; do A=7; done",
    'A="${B:-"quoted word"}"; B=x',
    "A=$'plain'; B=\"\"",
    "cat <<'EOF'\nA=1\nEOF\nB=2",
    "read -r -d '' REST <<EOF\ndata.d=1 \\\n   data.e=\"2\"\n\nEOF\nB=2",
    "A=7\nread -r -d '' REST <<-EOF\n  data.d=$A data.e=${NONE:-8}\n\tEOF",
    "A=7\nread -r -d '' B << 'EOF'\n x=$A 'y' \nEOF\nread -d \"\" -r A <<END\nz\nEND",
    "A=(1 2); B=${A}",
    "N=(5 6 7); A=${N[0]}; i=2; B=${N[$i]}",
    "N=(5); N+=(6); i=1; A=${N[1]}; B=${N[i]}",
    'N=("a b"); for i in "${!N[@]}"; do A=${N[$i]}; B=$i; done',
    "unset A; A+=1; A+=2",
    'if [[ -n "$A" || ab == a* ]]; then B=1; fi',
    "A=''; if [ -z \"$A\" ] && [ ! 2 -lt 1 ]; then B=1; fi",
    "A=UP; B=${A,,}; C=${A^^}",
    "export A=1 B=2; readonly C=3",
    "A=1 2>/dev/null\nB=2 >/dev/null",
    'A=x; A=$A$A; A="$A-$A"',
    "while false; do A=1; done; B=${A:-2}",
    "A=1;if true;then B=2;fi",
    "function g { A=4; }; g",
    "A=4\nif (( A > 3 )); then B=1; else B=2; fi",
    "case a in a | b) A=1 ;; esac; case b in\n  a | b)\n    B=2\n    ;;\nesac",
    "if false; then python3 -m verl.trainer.main_ppo data.a=0; fi",
    ": ${A:=5} ${B=6}",
    "A=${UNSET+set}; B=${UNSET:+set}; UNSET=1; C=${UNSET:+set}",
]


@pytest.mark.parametrize("text", SCRIPTS)
def test_a_script_is_read_as_bash_runs_it(text):
    expected = as_bash(text + CALL)
    found = known(text + CALL)
    assert found.items() <= expected.items()
    # An empty value may be that of a variable which no line sets, so that the environment may.
    assert {key for key, value in expected.items() if value} <= set(found)


NAMES = st.sampled_from("ABC")
TEXTS = st.sampled_from(["1", "2", "x", "''", "'a b'", '"c"', "$A", "$B", '"$C"', "${A:-3}", "${B:+4}", "$((1 + 2))"])
TESTS = st.builds(
    "[ {} = {} ]".format, st.sampled_from(['"$A"', '"$B"', "1", '"${C:-x}"']), st.sampled_from(["1", "x"])
)
LEAVES = st.builds("{}={}".format, NAMES, TEXTS) | st.sampled_from(["true", "LIST+=(data.d=1)", "LIST=(data.e=$A)"])
COMMANDS = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.builds("if {}; then\n{}\nelse\n{}\nfi".format, TESTS, inner, inner),
        st.builds('case "${{A:-1}}" in\n1) {} ;;\nx | b) {} ;;\n*) {} ;;\nesac'.format, inner, inner, inner),
        st.builds("{{ {}\n{}; }}".format, inner, inner),
        st.builds("{} && {{ {}; }}".format, TESTS, inner),
        st.builds("for V in 1 2; do {}; done".format, inner),
    ),
    max_leaves=8,
)


@settings(max_examples=120)
@given(st.lists(COMMANDS, min_size=1, max_size=5))
def test_random_scripts_are_read_as_bash_runs_them(commands):
    text = "\n".join(["A='' B='' C=''", *commands]) + CALL
    expected = as_bash(text)
    for key, value in known(text).items():
        assert expected.get(key, "") == value, text


MARKS = [
    *"$}()'\"`\\\n;|*!# {",
    *("${", "$(", "((", "))", "[[", "]]", ";;", "&&", "||", "<<E", "E", "$X", "f()", "X=", "X=(", "X+=", ":-"),
    *("if", "then", "fi", "case", "in", "esac", "for", "do", "done", "\r\n", "\x00", "é", "\u2028"),
    *("python3 -m verl.trainer.main_ppo", "data.x=1"),
]


@settings(max_examples=600)
@given(st.lists(st.sampled_from(MARKS) | st.text(max_size=3), max_size=40))
def test_any_text_is_read_or_refused(pieces):
    with contextlib.suppress(ForeignTextError):
        read_run_script("".join(pieces))
