"""Variables that branches assign: resolved where the script decides, else kept with all their values."""

import pytest

from profiler.config.shell.run_script import NOT_PASSED, read_run_script

CALL = "python3 -m verl.trainer.main_ppo data.y=1 "


def passed(text, argument="data.x=$X"):
    return read_run_script(f"{text}\n{CALL}{argument}\n").overrides.get("data.x")


PROBE = "D=${D:-$(python3 -c 'import torch_npu' 2>/dev/null && echo npu || echo gpu)}\n"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('M=${M:-a}\ncase "$M" in\n a) X=1 ;;\n b) X=2 ;;\nesac', "1"),
        ('M=${M:-c}\ncase "$M" in a | b) X=1 ;; *) X=2 ;; esac', "2"),
        ("M=qwen-7b\ncase $M in *-7b) X=1;; *) X=2;; esac", "1"),
        ('M=${M:-}\nif [ -z "$M" ]; then X=1; else X=2; fi', "1"),
        ("M=4\nif [[ $M -gt 2 && $M != 5 ]]; then X=1; elif true; then X=2; fi", "1"),
        ("M=4\nif (( M % 2 == 1 )); then X=1; else X=2; fi", "2"),
        ('M=a\n[ "$M" = a ] && X=1 || X=2', "1"),
        ('M=a\nif ! [ "$M" == a ]; then X=1; else X=2; fi', "2"),
        ('M=a\nif [ "$M" = a ] || [ "$Q" = b ]; then X=1; else X=2; fi', "1"),
        ("if [ $Q = 1 ]; then X=1; else X=1; fi", "1"),
        ("X=1\nif [ $Q = 1 ]; then X=2; exit 1; fi", "1"),
        ("case $Q in a) X=1;; b) X=1;; *) echo; exit 1;; esac", "1"),
        ("f() { X=$1; }\nf 3", "3"),
        ("f() { local Y=$1; X=$((Y * 2)); }\nf 3", "6"),
        ("(X=2)\nX=${X:-1}", "1"),
        ("for X in 4; do Y=1; done", "4"),
        ("for X in 4 5; do Y=1; done\nX=$Y", "1"),
        ("cat <<EOF > file\nX=2\nEOF\nX=${X:-1}", "1"),
        ("X=1 # comment \\\n", "1"),
        (PROBE + 'case "$D" in gpu) X=1;; npu) X=2;; esac', "1"),
        (PROBE + 'X=1\nif [ "$D" = npu ]; then X=2; fi', "1"),
        ("X=ABC\nX=${X,,}", "abc"),
        ('Y=""\nX=${Y:-5}', "5"),
        ('Y=""\nX=${Y-5}', ""),
        (": ${X:=7}", "7"),
        ("Y=1\nX=${Y:+8}", "8"),
        ("Y=2\nX=$(expr 16 / $Y)", "8"),
        ("Y=3\nX=`expr 16 / ${Y} \\* 2 - 1`", "9"),
    ],
)
def test_decided_by_the_script(text, expected):
    found = passed(text)
    assert (found.text, found.is_known) == (expected, True)


@pytest.mark.parametrize(
    ("text", "alternatives"),
    [
        ("if [ $Q = 1 ]; then X=2; else X=3; fi", {"2", "3"}),
        ("X=1\nif [ $Q = 1 ]; then X=2; fi", {"1", "2"}),
        ("X=1\ncase $Q in a) X=2;; b) X=3;; esac", {"1", "2", "3"}),
        ("X=1\n[ -d /data ] && X=2", {"1", "2"}),
        ("Y=1\nif [ $Q = 1 ]; then Y=2; fi\nX=$((Y * 1024))", {"1024", "2048"}),
        ("Y=1\nif [ $Q = 1 ]; then Y=2; fi\nX=a$Y", {"a1", "a2"}),
        ("if [ $Q = 1 ]; then X=2; fi\nX=${X:-5}", {"2", "5"}),
        ("for X in 1 2; do echo; done", {"1", "2"}),
        ("X=1\nwhile read -r line; do X=2; done < file", {"1", "2"}),
    ],
)
def test_kept_with_all_values(text, alternatives):
    found = passed(text)
    assert not found.is_known and set(found.alternatives) == alternatives


@pytest.mark.parametrize(
    "text",
    [
        "while read -r line; do X=$X$line; done < file",
        "X=1\nfor i in 1 2 3; do X=$((X * 2)); done",
        "if [ $Q = 1 ]; then X=$(date); else X=3; fi",
        "read X",
        "X=1\n((X++))",
    ],
)
def test_without_values_that_are_known(text):
    found = passed(text)
    assert not found.is_known and not found.alternatives


@pytest.mark.parametrize(
    ("text", "argument", "expected"),
    [
        ("A=()\nif [ $Q = 1 ]; then A+=(data.x=2); fi", '"${A[@]}"', {"2", NOT_PASSED}),
        ("A=(data.x=1)\nif [ $Q = 1 ]; then A=(data.x=2); fi", '"${A[@]}"', {"1", "2", NOT_PASSED}),
        ("A=''\nif [ $Q = 1 ]; then A='data.x=2 data.z=3'; fi", "$A", {"2", NOT_PASSED}),
        ("if [ $Q = 1 ]; then A=data.x=2; fi", "data.x=7 $A", {"2", "7"}),
    ],
)
def test_words_that_only_some_branches_pass(text, argument, expected):
    found = passed(text, argument)
    assert not found.is_known and set(found.alternatives) == expected


def test_the_condition_of_a_branch_is_kept():
    assert passed('X=1\nif [ "$RANK" = 1 ]; then X=2; fi').because == "[ $RANK = 1 ]"


def test_values_without_quotes_are_split():
    found = read_run_script(f'ROOT=$HOME/m\nA="data.a=1 \\\n  data.b=$ROOT/x data.c=3"\n{CALL}$A\n').overrides
    assert {key: each.is_known for key, each in found.items()} == {
        "data.y": True,
        "data.a": True,
        "data.b": False,
        "data.c": True,
    }


def test_groups_of_hydra_and_words_that_are_not_read():
    script = read_run_script(f"{CALL}model_engine=megatron actor@actor_rollout_ref.actor=mine $EXTRA\n")
    assert {key: each.text for key, each in script.groups.items()} == {
        "model_engine": "megatron",
        "actor@actor_rollout_ref.actor": "mine",
    }
    assert script.unread == ("$EXTRA",)
    assert read_run_script(f". .venv/bin/activate\nsource common.sh\n{CALL}\n").unread == ("common.sh",)
