"""The grammar of `python -m profiler.run`: our keys, a launcher, the script and its arguments."""

import pytest
from script_builders import record

from profiler.config.options.command_words import wants_help_first
from profiler.domain.errors import EXIT_ANSWER_IS_NO, EXIT_OK, FailIf, UsageError
from profiler.run.command import OPTIONS, JobCommand, ScriptOptions, read_command, usage
from profiler.run.main import exit_code
from profiler.run.process import launcher_arguments


@pytest.fixture(autouse=True)
def script(tmp_path, monkeypatch):
    (tmp_path / "train.py").touch()
    monkeypatch.chdir(tmp_path)


def test_our_keys_end_at_the_first_word_without_an_equals_sign():
    command = read_command(["steps=2", "gpu=l40s-48gb", "train.py", "steps=9", "--x=1", "gpu=no"])
    assert (command.options.steps, command.options.gpu) == (2, "l40s-48gb")
    assert command.script.name == "train.py"
    assert command.script.is_absolute()
    assert command.arguments == ("steps=9", "--x=1", "gpu=no")


def test_our_keys_may_be_options_and_words_after_the_script_are_its_own():
    command = read_command(["--steps", "2", "--gpu=l40s-48gb", "train.py", "--steps", "9", "--gpu=no", "-x"])
    assert (command.options.steps, command.options.gpu) == (2, "l40s-48gb")
    assert command.arguments == ("--steps", "9", "--gpu=no", "-x")
    command = read_command(["--steps", "2", "--", "train.py", "--steps", "9"])
    assert (command.options.steps, command.arguments) == (2, ("--steps", "9"))


def test_our_keys_end_at_two_dashes():
    assert read_command(["steps=null", "--", "train.py", "--", "a=b"]).arguments == ("--", "a=b")
    assert read_command(["steps=null", "--", "train.py"]).options.steps is None


def test_a_later_value_of_a_key_wins():
    assert read_command(["steps=2", "steps=4", "train.py"]).options.steps == 4


@pytest.mark.parametrize(
    ("words", "help_"),
    [
        (["--help"], True),
        (["-h", "train.py"], True),
        (["steps=2", "--help"], True),
        (["--steps", "2", "--help"], True),
        (["--steps", "2", "train.py", "--help"], False),
        (["train.py", "--help"], False),
        (["torchrun", "train.py", "-h"], False),
        (["--", "--help"], False),
        ([], False),
    ],
)
def test_help_after_the_script_is_the_scripts_own(words, help_):
    assert wants_help_first(words) is help_


@pytest.mark.parametrize(
    ("launcher", "processes"),
    [
        ("torchrun --nproc_per_node=8", 8),
        ("torchrun --nproc-per-node 4 --nnodes 2 --standalone", 8),
        ("torchrun --standalone --nproc_per_node=gpu", None),
        ("torchrun", None),
        ("accelerate launch --num_processes 4 --mixed_precision bf16", 4),
        ("accelerate launch --config_file conf.yaml", 6),
        ("accelerate launch --config_file=conf.yaml --num-processes=2", 2),
        ("accelerate launch", None),
        ("deepspeed --num_gpus=2 --num_nodes 3", 6),
        ("deepspeed --include localhost:0", None),
    ],
)
def test_a_launcher_gives_its_number_of_processes(launcher, processes, tmp_path):
    (tmp_path / "conf.yaml").write_text("num_processes: 6\nmixed_precision: bf16\n")
    command = read_command(["steps=2", *launcher.split(), "train.py", "--deepspeed", "ds.json"])
    assert command.launch.words == tuple(launcher.split())
    assert command.launch.num_processes == processes
    assert command.arguments == ("--deepspeed", "ds.json")


def test_deepspeed_hands_its_rank_to_the_script():
    assert launcher_arguments(read_command(["deepspeed", "train.py"])) == ("--local_rank=0",)
    assert launcher_arguments(read_command(["deepspeed", "--no_local_rank", "train.py"])) == ()
    assert launcher_arguments(read_command(["torchrun", "train.py"])) == ()


def test_every_fault_is_found():
    with pytest.raises(UsageError) as refused:
        read_command(["stepz=1", "gpu=x", "timeout_s=0", "accelerate", "launch", "--num_processes=0", "no.py"])
    assert [fault.key for fault in refused.value.faults] == [
        "stepz", "accelerate numprocesses", "script", "gpu", "timeout_s"
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("words", "key", "says"),
    [
        ("sudo -E bash run.sh", "command", "emulated cards need no rights"),
        ("env A=1 /usr/bin/sudo bash run.sh", "command", "emulated cards need no rights"),
        ("env -i bash run.sh", "command", "env NAME=VALUE works"),
        ("conda run -n x bash run.sh", "command", "python=PATH"),
        ("nohup uv run python train.py", "command", "python=PATH"),
        ("poetry run python -m verl.trainer.main_ppo", "command", "python=PATH"),
        ("docker run --gpus all image bash run.sh", "command", "a container"),
        ("srun -N 1 bash run.sh", "command", "not part of the run"),
        ("ray job submit -- python train.py", "command", "not part of the run"),
        ("bash -eu no.sh", "script", "no such file"),
        ("no.py", "script", "no such file"),
        ("torchrun --nproc_per_node=2 no.py", "script", "no such file"),
        ("./run.sh", "script", "bash ./run.sh"),
        ("A_B=1 bash run.sh", "A_B", "env A_B=1 COMMAND"),
    ],
)
def test_a_command_that_leaves_the_emulated_cards_is_refused(words, key, says, tmp_path):
    (tmp_path / "run.sh").touch()
    with pytest.raises(UsageError) as refused:
        read_command(["gpus=2xh100-80gb", *words.split()])
    (fault,) = refused.value.faults
    assert fault.key == key
    assert says in f"{fault.problem} {fault.hint}"


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("uv run --isolated --extra vllm -m skyrl.train.entrypoints.main_base", "uv run in run.sh"),
        ("set -x\nTRAIN=train.py\nuv run $TRAIN --x 1", "uv run in run.sh"),
        ("ray job submit --address=x -- python3 -m verl.trainer.main_ppo", "ray job in run.sh"),
        ("cd x && sudo python train.py", "sudo in run.sh"),
        ("go() { sbatch $1; }\ngo train.sh", "sbatch in run.sh"),
        ("bash inner.sh", "docker in inner.sh"),
    ],
)
def test_a_script_whose_command_leaves_the_cards_is_refused(text, found, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run.sh").write_text(text)
    (tmp_path / "inner.sh").write_text("bash run.sh\ndocker run image bash train.sh")
    with pytest.raises(UsageError) as refused:
        read_command(["gpus=2xh100-80gb", "bash", "run.sh"])
    (fault,) = refused.value.faults
    assert (fault.key, fault.found) == ("command", found)
    with pytest.raises(UsageError, match="python=PATH"):
        read_command(["gpus=2xh100-80gb", "env", "A=1", "bash", "-c", "cd x; uv run train.py"])


@pytest.mark.parametrize(
    "text",
    [
        "if [ -n $HOST ]; then ssh $HOST bash train.sh; else python train.py; fi",
        "docker ps\npython train.py",
        "$RUNNER uv run\npython train.py ssh",
        "uv pip install trl\npython train.py",
        "bash made_later.sh",
        "bash run.sh",
        "'",
    ],
)
def test_a_script_that_may_stay_on_the_cards_is_started(text, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run.sh").write_text(text)
    assert isinstance(read_command(["gpus=2xh100-80gb", "bash", "run.sh"]), JobCommand)


@pytest.mark.parametrize(
    "words",
    [
        "nohup env A=1 timeout 60 nice -n 5 bash run.sh docker sudo",
        "python -m uv run",
        "bash -c docker",
        "python train.py ssh",
        "torchrun --nproc_per_node=2 train.py",
        "bash -c no.sh",
        "make train",
        "./train.sh",
    ],
)
def test_other_commands_are_started_as_they_stand(words, tmp_path):
    (tmp_path / "run.sh").touch()
    (tmp_path / "train.sh").touch(mode=0o755)
    command = read_command(["gpus=2xh100-80gb", *words.split()])
    assert isinstance(command, JobCommand)
    assert command.words == tuple(words.split())
    assert read_command(["gpus=2xh100-80gb", "train.py"]).words == ("python", "train.py")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("gpus=8h100-80gb", "Did you mean '8xh100-80gb'?"),
        ("gpus=8*h100", "Did you mean '8xh100'?"),
        ("gpus=8 x h100-80gb", "Did you mean '8xh100-80gb'?"),
        ("gpus=0xh100-80gb", "1 to 64 cards"),
        ("gpus=8", "names no card"),
        ("gpus=8xnothing", "names no card"),
        ("gpu=8xh100-80gb", "gpus=8xh100-80gb has several"),
    ],
)
def test_cards_that_are_written_otherwise_are_named(text, says):
    with pytest.raises(UsageError) as refused:
        read_command([text, "train.py"])
    (fault,) = refused.value.faults
    assert says in f"{fault.problem} {fault.hint}"


def test_the_help_has_every_key_with_its_default_and_examples():
    text = usage()
    for name, key in OPTIONS.items():
        assert f"  {name}={key.kind.shown}" in text
        default = key.null if key.default is None else key.default_text
        assert "(default: " + default.split()[0] in " ".join(text.split())
    assert text.count("\n  python -m profiler.run") >= 2
    assert max(map(len, text.splitlines())) <= 80


def test_a_script_that_ran_out_of_memory():
    asked, silent = ScriptOptions(fail_if=FailIf.DOES_NOT_FIT), ScriptOptions()
    assert exit_code(record(fits=False), asked) == EXIT_ANSWER_IS_NO
    assert exit_code(record(fits=False), silent) == EXIT_OK
    assert exit_code(record(fits=True), asked) == EXIT_OK
