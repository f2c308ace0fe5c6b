"""What a shell script passes to verl, without running it."""

import pytest

from profiler.config.foreign_text import ForeignTextError
from profiler.config.shell.run_script import read_run_script
from profiler.config.verl.sources import script_source

CALL = "python3 -m verl.trainer.main_ppo "


def values(text):
    return {key: found.text for key, found in read_run_script(text).overrides.items()}


def one(text, argument="data.x=$X"):
    """What `data.x` becomes, and whether it is known."""
    (found,) = read_run_script(f"{text}\n{CALL}{argument}\n").overrides.values()
    return found.text, found.is_known


@pytest.mark.parametrize(
    ("text", "argument", "expected"),
    [
        ("X=4", "data.x=$X", "4"),
        ("X=4", "data.x=${X}", "4"),
        ("export X=4", 'data.x="${X}"', "4"),
        ("X=4; Y=5", "data.x=$X$Y", "45"),
        ("X='a $Y b'", 'data.x="$X"', "a $Y b"),
        ('Y=1; X="a $Y b"', 'data.x="$X"', "a 1 b"),
        ("", "data.x=${X:-7}", "7"),
        ("", "data.x=${1:-vllm}", "vllm"),
        ("Y=3", "data.x=${X:-$Y}", "3"),
        ("X=2", "data.x=${X:-7}", "2"),
        ("X=$((1024 * 8))", "data.x=$X", "8192"),
        ("A=3; B=4; X=$(((A + B) * 2))", "data.x=$X", "14"),
        ("A=$((7 / 2))", "data.x=$(($A % 2))", "1"),
        ("X=1 # a comment", "data.x=$X", "1"),
        ("", "data.x=a#b", "a#b"),
        ("", 'data.x=\'["console","wandb"]\' $@', '["console","wandb"]'),
        ("", "+data.x=1", "1"),
        ("", "++data.x=1", "1"),
        ("A=(x y)", "data.x=${A[1]}", "y"),
        ("A=(x y); I=1", "data.x=${A[$I]}", "y"),
        ("A=(x y); I=1", "data.x=${A[I]}", "y"),
        ("A=(x); A+=(y)", 'data.x="${A[1]}"', "y"),
        ("A=(x)\nfor i in ${!A[@]}; do\nX=${A[$i]}\ndone", "data.x=$X", "x"),
        ("#SBATCH --nodes=4", "data.x=${SLURM_NNODES:-1}", "4"),
        ("#SBATCH -N 2 -n 1", "data.x=$SLURM_JOB_NUM_NODES", "2"),
        ("#SBATCH --gres=gpu:h100:4", "data.x=$SLURM_GPUS_ON_NODE", "4"),
        ("#SBATCH --gpus-per-node=8", "data.x=$SLURM_GPUS_PER_NODE", "8"),
        ("#SBATCH --gpus-per-node=8\nSLURM_GPUS_PER_NODE=2", "data.x=$SLURM_GPUS_PER_NODE", "2"),
    ],
)
def test_values_that_the_script_states(text, argument, expected):
    assert one(text, argument) == (expected, True)


@pytest.mark.parametrize(
    ("text", "argument", "shown"),
    [
        ("", "data.x=$HOME/models/m", "$HOME/models/m"),
        ("", "data.x=${HOME}/m", "${HOME}/m"),
        ("X=$(date +%s)", "data.x=$X", "$(date +%s)"),
        ("X=`date`", "data.x=$X", "`date`"),
        ("if [ $A = 1 ]; then\nX=1\nfi", "data.x=$X", "$X"),
        ("for X in 1 2; do\nY=$X\ndone", "data.x=$Y", "$X"),
        ("X=1", "data.x=${X//1/2}", "${X//1/2}"),
        ("A=two", "data.x=$((A * 2))", "$((A * 2))"),
        ("A=1", "data.x=$((A / 0))", "$((A / 0))"),
        ("A=(x y)", "data.x=${A[2]}", "${A[2]}"),
        ("A=(x $B y)", "data.x=${A[2]}", "${A[2]}"),
        ("A=(x y); A[1]=z", "data.x=${A[1]}", "${A[1]}"),
        ("declare -A A=([b]=1)", "data.x=${A[b]}", "${A[b]}"),
        ("declare -A A=([0]=1)", "data.x=${A[0]}", "${A[0]}"),
        ("A=(x y)\nfor i in ${!A[@]}; do\nX=${A[$i]}\ndone", "data.x=$X", "${A[$i]}"),
        ("if [ -f a ]; then\nA=(x y)\nelse\nA=(z y)\nfi", "data.x=${A[1]}", "${A[1]}"),
        ("##SBATCH --nodes=4", "data.x=$SLURM_NNODES", "$SLURM_NNODES"),
        ("#SBATCH --nodes=2-4", "data.x=$SLURM_NNODES", "$SLURM_NNODES"),
        ("#SBATCH --gpus-per-node=a100:8", "data.x=$SLURM_GPUS_PER_NODE", "$SLURM_GPUS_PER_NODE"),
    ],
)
def test_values_that_it_does_not_state_are_unknown(text, argument, shown):
    assert one(text, argument) == (shown, False)


def test_lines_may_continue_and_arrays_are_spread():
    text = (
        "N=2\nDATA=(\n  data.a=1  # first\n  data.b=$N\n)\nDATA+=(data.c=3)\n"
        + CALL
        + '\\\n    "${DATA[@]}" \\\n data.d=4\n'
    )
    assert values(text) == {"data.a": "1", "data.b": "2", "data.c": "3", "data.d": "4"}


def test_words_inside_of_a_substitution_are_no_words_of_the_call():
    """Of princeton-pli/RL-skill-comp: a sum of which one part is counted by `grep` left its end as words."""
    script = read_run_script(f"N=$(( $(echo $GPUS | grep -o , | wc -l) + 1 ))\n{CALL}data.a=$N data.b=2")
    assert (set(script.overrides), script.unread) == ({"data.a", "data.b"}, ())


def test_an_array_of_which_an_element_is_set_later_is_unknown():
    script = read_run_script(f'A=(data.a=1 data.b=2)\nA[1]=data.b=3\n{CALL} data.c=4 "${{A[@]}}"')
    assert (set(script.overrides), script.unread) == ({"data.c"}, ("$A",))


def test_the_name_of_hydra_s_configuration_is_read():
    text = CALL + "--config-path=config --config-name='ppo_megatron_trainer.yaml' data.a=1"
    assert read_run_script(text).config_name == "ppo_megatron_trainer"
    assert read_run_script(CALL + "--config-name ppo_trainer data.a=1").config_name == "ppo_trainer"


@pytest.mark.parametrize(
    ("called", "of_fork"),
    [
        ("verl.trainer.main_ppo", ()),
        ("recipe.dapo.main_dapo", ()),
        ("verl/trainer/main_ppo.py", ()),
        ("./verl/verl/trainer/main_ppo.py", ()),
        ("verl.trainer.main_ppo_sync", ()),
        ("verl.experimental.transfer_queue.main_ppo", ()),
        ("trainer/main_ppo.py", ()),
        ("main_ppo.py", ()),
        ("recipe.dapo.src.main_dapo", ()),
        ("dapo/main_dapo.py", ()),
        ("verl.trainer.main_ppo_format", ("verl.trainer.main_ppo_format",)),
        ("verl.experimental.vla.main_ppo", ("verl.experimental.vla.main_ppo",)),
        ("ragen.trainer.main_ppo", ("ragen.trainer.main_ppo",)),
        ("src/main_ppo.py", ("src/main_ppo.py",)),
        ("recipe.mine.main_dapo", ("recipe.mine.main_dapo",)),
        ("verl.trainer.main_cgrpo", ("verl.trainer.main_cgrpo",)),
        ("rllm/main_agent.py", ("rllm/main_agent.py",)),
    ],
)
def test_the_trainer_of_a_fork_is_named(called, of_fork):
    script = read_run_script(f"python3 -m {called} data.a=1")
    assert script.of_fork == of_fork
    said = [note.text for note in script_source(script, name="run.sh").notes if not note.is_counted]
    assert said == [f"what {each} makes otherwise than verl's main_ppo" for each in of_fork]


def test_environment_variables_before_the_call_are_no_assignments():
    assert values("PYTHONPATH=/opt python3 -m verl.trainer.main_ppo data.a=1 > log 2>&1") == {"data.a": "1"}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("echo 1", "calls no verl.trainer.main_ppo"),
        ("python -m verl.trainer.main_eval data.a=1", "calls no verl.trainer.main_ppo"),
        ("torchrun -m verl.trainer.fsdp_sft_trainer data.a=1", "SFT trainer, which has no recipe here"),
        ("python main_ppo_split.py data.a=1", "calls main_ppo_split.py, which has parts of the job on different GPUs"),
        (f"{CALL} data.a=1\n{CALL} data.a=2", "calls verl's trainer 2 times"),
        ("", "calls no verl.trainer.main_ppo"),
    ],
)
def test_a_script_without_a_job_is_refused(text, said):
    with pytest.raises(ForeignTextError, match=said.replace("(", ".")):
        read_run_script(text)


@pytest.mark.parametrize(
    "text", ["'", '"', "${", "$((", "$(", "X=(", "`", "$", "\\", "X=${X:-${X:-${X}}}", "${X:-" * 90]
)
def test_a_script_that_ends_too_early_does_not_hang(text):
    assert values(f"{CALL} data.a=1\n{text}")["data.a"] == "1"
