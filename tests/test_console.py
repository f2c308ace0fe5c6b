"""`grpo-vram`: one name for all commands, each with its help."""

import shlex
import subprocess
import sys
import tomllib
from importlib import import_module
from pathlib import Path

import pytest

import grpo_vram
import profiler
from profiler import __version__, console
from profiler.domain.errors import EXIT_OK, EXIT_USAGE
from profiler.estimate.command import read_command as read_estimate
from profiler.replay.command import read_command as read_replay
from profiler.solve.command import read_command as read_solve
from profiler.sweep.command import read_command as read_sweep

PROJECT = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]
COMMANDS = tuple(console.COMMANDS)
NAMES = ", ".join(COMMANDS)
READERS = {"estimate": read_estimate, "solve": read_solve, "replay": read_replay, "sweep": read_sweep}


def modules_after(code: str) -> set[str]:
    """Modules that a fresh interpreter has imported after `code`."""
    program = (
        f"import sys, contextlib, io\nwith contextlib.redirect_stdout(io.StringIO()):\n    {code}\nprint(*sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    return set(done.stdout.split())


def exit_code(words: list[str]) -> int:
    """The exit code of `grpo-vram`, also where argparse ends the process by itself."""
    try:
        return console.main(words)
    except SystemExit as end:
        return int(end.code or 0)


def test_the_console_command_is_installed_under_its_name():
    module, _, function = PROJECT["scripts"][console.NAME].partition(":")
    assert getattr(import_module(module), function) is grpo_vram.main


@pytest.mark.parametrize("words", [[], ["-h"], ["--help"]])
def test_help_names_every_command(capsys, words):
    assert console.main(words) == EXIT_OK
    out = capsys.readouterr().out
    assert max(map(len, out.splitlines())) <= 80
    for name, command in console.COMMANDS.items():
        assert f"  {name}" in out
        assert command.summary in out


def test_the_version(capsys):
    assert console.main(["--version"]) == EXIT_OK
    assert capsys.readouterr().out == f"grpo-vram {__version__}\n"


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["sweeep"], f"command=sweeep: Did you mean 'sweep'? It must be one of {NAMES}."),
        (["qwen2.5-7"], f"command=qwen2.5-7: Did you mean 'qwen2.5-7b'? It must be one of {NAMES}."),
        (
            ["model=qwen2.5-7b"],
            f"command=model=qwen2.5-7b: Did you mean 'qwen2.5-7b'? It must be one of {NAMES}.",
        ),
        (["--hlp"], f"command=--hlp: must be one of {NAMES}. See grpo-vram --help."),
    ],
)
def test_an_unknown_command_is_one_sentence(capsys, words, sentence):
    assert console.main(words) == EXIT_USAGE
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err == f"{sentence}\n"


@pytest.mark.parametrize(
    ("word", "key"),
    [
        ("qwen2.5-7b", "model"),
        ("qwen2.5-7b,qwen2.5-3b", "model"),
        ("Qwen/Qwen2.5-7B", "model"),
        ("somebody/model", "model"),
        ("config.json", "model"),
        ("a/config.json", "model"),
        ("folder", "model"),
        ("grpo.yaml", "config"),
        ("train", "config"),
        ("missing/grpo.yml", "config"),
    ],
)
def test_a_model_a_hub_id_or_a_file_is_estimated(monkeypatch, tmp_path, word, key):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    (tmp_path / "train").write_text("")
    started = []
    monkeypatch.setattr(console, "start", lambda *words: started.append(words) or EXIT_OK)
    assert console.main([word, "gpu=4090"]) == EXIT_OK
    assert started == [("estimate", [f"{key}={word}", "gpu=4090"])]


def test_a_command_is_no_file(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run").write_text("")
    started = []
    monkeypatch.setattr(console, "start", lambda *words: started.append(words) or EXIT_OK)
    console.main(["run", "x.py"])
    assert started == [("run", ["x.py"])]


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_gets_the_words_after_its_name_and_its_exit_code_is_kept(capsys, name):
    """An unknown option is wrong input in every command, and its message quotes the option."""
    # What follows a script belongs to the script.
    words = ["--nonsense"] if name == "run" else ["x", "--nonsense"]
    assert console.main([name, *words]) == EXIT_USAGE
    assert "--nonsense" in capsys.readouterr().err


@pytest.mark.parametrize("name", COMMANDS)
def test_help_of_each_command_has_examples_that_are_valid(capsys, name):
    assert exit_code([name, "--help"]) == EXIT_OK
    usage, _, examples = capsys.readouterr().out.partition("Examples:\n")
    prefix = f"python -m profiler.{name}"
    assert prefix in usage
    found = [line.strip() for line in examples.splitlines() if line.strip().startswith(prefix)]
    assert len(found) >= 3
    assert all(len(line) <= 78 for line in found)
    for line in found:
        words = shlex.split(line)[3:]
        assert words or name == "seams"
        if name in READERS:
            assert not READERS[name](words).faults


def test_an_estimate_imports_neither_torch_nor_pyarrow_nor_hydra():
    words = ["estimate", "model=qwen2.5-0.5b"]
    loaded = modules_after(f"from profiler.console import main; assert main({words}) == 0")
    assert "profiler.estimate.main" in loaded
    assert not loaded & {"torch", "pyarrow", "pandas", "hydra", "matplotlib", "rich", "transformers"}


def test_a_sweep_starts_its_workers_before_it_imports_pandas():
    loaded = modules_after("import profiler.sweep.main, profiler.execution.runner, profiler.rendering.live.progress")
    assert not loaded & {"torch", "pandas", "matplotlib", "transformers"}


def test_importing_the_package_is_light_although_it_has_a_callback():
    loaded = modules_after("import profiler")
    assert not loaded & {"torch", "transformers", "numpy", "pyarrow", "rich", "profiler.callback"}
    with pytest.raises(AttributeError, match="no attribute 'VramCalback'"):
        profiler.VramCalback  # noqa: B018


def test_help_imports_no_command():
    loaded = modules_after("from profiler.console import main; main(['--help'])")
    assert not loaded & {"profiler.estimate", "profiler.sweep", "profiler.report", "profiler.replay", "profiler.solve"}


def test_bash_completion_is_installed_for_the_console_command(capsys):
    assert console.main(["-sc", "install=bash"]) == EXIT_OK
    out = capsys.readouterr().out
    assert out.rstrip().endswith(f" hydra_bash_completion {console.NAME}")
    assert "-sc query=bash" in out


@pytest.mark.parametrize(
    ("line", "some"),
    [
        ("grpo-vram ", set(COMMANDS)),
        ("grpo-vram sw", {"sweep"}),
        ("grpo-vram sweep", {"sweep"}),
        ("grpo-vram sweep +gr", {"+grid="}),
        ("grpo-vram sweep +grid=lo", {"+grid=logprobs", "+grid=lora_vs_full"}),
        ("grpo-vram sweep +grid=full num_g", {"num_generations="}),
    ],
)
def test_completion_offers_commands_grids_and_keys(capsys, monkeypatch, line, some):
    monkeypatch.setenv("COMP_LINE", line)
    monkeypatch.setenv("COMP_POINT", str(len(line)))
    assert console.main(["-sc", "query=bash"]) == EXIT_OK
    assert some <= set(capsys.readouterr().out.split())


def test_completion_leaves_the_words_of_other_commands_to_the_shell(capsys, monkeypatch):
    monkeypatch.setenv("COMP_LINE", "grpo-vram replay sna")
    assert console.main(["-sc", "query=bash"]) == EXIT_OK
    assert capsys.readouterr().out == ""
