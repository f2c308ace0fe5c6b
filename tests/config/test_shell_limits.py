"""Scripts that multiply, nest or repeat: read or refused within limits of time and memory."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from matrix import with_further

from profiler.config.foreign_text import ForeignTextError
from profiler.config.shell.run_script import read_run_script

CALL = "\npython3 -m verl.trainer.main_ppo data.x=$X\n"
MULTIPLIES = "multiply"
DEEP = "nested more than"

SMALL = {
    "a doubled variable": ("X=aaaaaaaa\n" + "X=$X$X\n" * 60, MULTIPLIES),
    "a doubled variable in quotes": ("X=aaaaaaaa\n" + 'X="$X$X"\n' * 60, MULTIPLIES),
    "a variable added to itself": ("X=a\n" + "X+=$X\n" * 60, MULTIPLIES),
    "a chain of variables": ("A=aaaaaaaa\n" + "".join(f"A{n + 1}=$A{n}$A{n}\n" for n in range(60)), None),
    "a doubled default": ("X=a\n" + "X=${Y:-$X$X}\n" * 60, MULTIPLIES),
    "a doubled upper case": ("X=aaaaaaaa\n" + "X=${X^^}${X^^}\n" * 60, MULTIPLIES),
    "a doubled array": ("A=(a)\n" + 'A=("${A[@]}" "${A[@]}")\n' * 60, MULTIPLIES),
    "an array added to itself": ("A=(a)\n" + 'A+=("${A[@]}" "${A[@]}")\n' * 60, MULTIPLIES),
    "functions that call each other": ("f() { X=$1$1; g $X; }\ng() { f $1$1; }\nf aaaaaaaaaaaaaaa", MULTIPLIES),
    "a recursive function": ("f() { f; f; }\nf", MULTIPLIES),
    "doubled calls": ("".join(f"f{n + 1}() {{ f{n}; f{n}; }}\n" for n in range(60)) + "f60", MULTIPLIES),
    "loops inside loops": ("for a in 1 2; do\n" * 50 + "X=$X$a\n" + "done\n" * 50, MULTIPLIES),
    "while inside while": ("while any; do\n" * 50 + "X=$X\n" + "done\n" * 50, MULTIPLIES),
    "many branches": ("".join(f"[ $Q = {n} ] && A{n}=1 || A{n}=2\n" for n in range(99)) + "X=$A1$A2$A3$A4$A5", None),
    "a power": ("X=$((9**9**9**9))", None),
    "a square": ("X=3\n" + "X=$((X * X))\n" * 60, None),
}
LARGE = {
    "blank lines": ("\n" * 40_000, None),
    "lines of spaces": (" \n" * 100_000, None),
    "blank lines in an array": ("A=(\n" + "\n" * 200_000 + ")", None),
    "comments": ("# a\n" * 50_000, None),
    "continued lines": ("\\\n" * 100_000, None),
    "here-documents": ("cat <<E\nE\n" * 20_000, None),
    "quotes": ("X=" + "'" * 200_000, None),
    "dollars": ("X=" + "$" * 200_000, None),
    "open defaults": ("X=" + "${X:-" * 40_000, None),
    "open braces": ("X=" + "${X[1]" * 30_000, None),
    "open substitutions": ("X=" + "$(" * 100_000, None),
    "open conditions": ("if a; then\n" * 20_000, DEEP),
    "open brackets": ("( " * 100_000, DEEP),
    "open braces of groups": ("{ " * 100_000, DEEP),
    "functions in functions": ("f() " * 50_000, DEEP),
    "conditions": ("if [ $Q = 1 ]; then\nX=1\nfi\n" * 8000, None),
    "variables in conditions": ("".join(f"if [ $Q = {n} ]; then\nX{n}=1\nfi\n" for n in range(5000)), MULTIPLIES),
    "an array of many lines": ("A=(a)\n" + "A+=(b)\n" * 30_000, MULTIPLIES),
    "a sum": ("X=$((" + "1+" * 100_000 + "1))", None),
    "brackets in a sum": ("X=$((" + "(" * 100_000 + "1))", None),
    "sums": ("X=$((1 + 1))\n" * 15_000, None),
    "a pattern of stars": ("A=" + "a" * 50_000 + "\ncase $A in " + "*a" * 5000 + "b) X=1 ;; esac", None),
    "clauses": ("case $A in " + "a) X=1 ;; " * 20_000 + " esac", None),
    "a long test": ("[ " + "a = b -a " * 10_000 + " c ] && X=1", None),
    "many nots": ("[ " + "! " * 100_000 + " c ] && X=1", None),
    "a pipeline": ("a | " * 25_000 + "b", None),
    "words": ("echo " + "a " * 40_000, None),
}
SCRIPTS = {**SMALL, **LARGE}

_MOST_SECONDS = 12.0
"""Of processor time; about a second is usual."""


KEPT = [*SMALL, *(name for name, (_, refused) in LARGE.items() if refused), "quotes", "clauses", "a sum", "words"]
"""A large script of each part of the grammar; those with the same parts are further cases."""


@pytest.mark.parametrize("name", with_further(SCRIPTS, KEPT))
def test_a_script_is_read_or_refused_in_time(name):
    text, refused = SCRIPTS[name]
    started = time.process_time()
    try:
        read_run_script(text + CALL)
        said = None
    except ForeignTextError as error:
        said = str(error)
    assert time.process_time() - started < _MOST_SECONDS
    if refused is not None:
        assert refused in said


def test_scripts_of_a_few_lines_take_little_memory():
    """1.5 kB took all memory of the host; a process with 1 GiB of addresses reads all of them."""
    code = (
        "import resource; resource.setrlimit(resource.RLIMIT_AS, (2**30, 2**30))\n"
        "from test_shell_limits import SMALL, CALL\n"
        "from profiler.config.shell.run_script import read_run_script, ForeignTextError\n"
        "for text, _ in SMALL.values():\n"
        "    try: read_run_script(text + CALL)\n"
        "    except ForeignTextError: pass\n"
    )
    folders = [str(folder) for folder in Path(__file__).parents[:2]]
    paths = os.pathsep.join([*folders, os.environ.get("PYTHONPATH", ""), str(Path.cwd())])
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_the_size_of_a_script_is_limited():
    with pytest.raises(ForeignTextError, match="more than 262,144 characters"):
        read_run_script("#" * 300_000 + CALL)
    words = " ".join(f"data.a{n}=1" for n in range(3000))
    with pytest.raises(ForeignTextError, match="more than 2,000 words"):
        read_run_script(f"{CALL.strip()} {words}")
