"""The sentences of docs/trouble.md are those that are printed, and the commands under them run."""

import ast
import re
import shlex
from importlib.util import find_spec
from pathlib import Path

import pytest

from profiler.allocator.oom_message import read_oom_message
from profiler.config.options.command_words import HELP_FLAGS
from profiler.console import main
from profiler.domain.errors import EXIT_OK, EXIT_USAGE
from profiler.domain.machines.extras import Extra, missing_fault
from profiler.measurement.driver.visible import VisibleGpus
from profiler.run.command import read_command as read_run
from profiler.sweep.command import read_command as read_sweep
from profiler.sweep.prepared.backend import real_gpu_faults

PAGE = (Path(__file__).parents[1] / "docs" / "trouble.md").read_text(encoding="utf-8")
ENTRY = re.compile(
    r"^### (?P<title>[^\n]+)\n\n```text\n(?P<shown>.+?)\n```\n\n(?P<words>.+?)\n\n```sh\n(?P<lines>.+?)\n```",
    re.MULTILINE | re.DOTALL,
)
ENTRIES = {match["title"]: match for match in ENTRY.finditer(PAGE)}
COMMANDS = tuple(line for match in ENTRIES.values() for line in match["lines"].splitlines())
RAISED = re.compile(r"^(?:\w+\.)?\w+Error: ")
"""How Python begins the sentence of an error."""

OF_LIBRARIES = {
    "No CUDA in torch": ("torch", "cuda/__init__.py"),
    "The batch does not hold whole groups": ("trl", "trainer/grpo_config.py"),
    "Several GPUs, one process": ("trl", "trainer/grpo_trainer.py"),
    "Quantised weights are not trained": ("transformers", "trainer_utils.py"),
    "No FlashAttention": ("transformers", "modeling_utils.py"),
    "Its native library is missing": ("bitsandbytes", "cextension.py"),
    "Quantised weights beyond the card": ("transformers", "quantizers/quantizer_bnb_4bit.py"),
    "A model that is divided among GPUs": ("accelerate", "accelerator.py"),
    "A quantised model on another GPU": ("accelerate", "accelerator.py"),
    "No batch size fits": ("accelerate", "utils/memory.py"),
}
"""The package and the file in which each sentence of an installed library is written."""

NOT_INSTALLED = (
    "Batch sizes that contradict each other",
    "Too little is free when vLLM starts",
    "No memory for the KV cache",
    "The context is longer than the KV cache",
)
"""Sentences of libraries that the tests do not install."""

OF_THE_PROGRAM = {
    "The estimate does not fit": "estimate model=qwen2.5-7b gpu=4090",
    "A model that the hub does not give": "estimate model=acme/model-7b",
    "A size that is no card": "estimate model=qwen2.5-7b gpu=24gb",
}
"""Command lines that make the program print a sentence."""


def said(title):
    """The sentence of an entry in one line, without the name of the error."""
    return RAISED.sub("", " ".join(ENTRIES[title]["shown"].split()))


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The files that the commands of the page name."""
    (tmp_path / "grpo.yaml").write_text("model_name_or_path: Qwen/Qwen2.5-7B\ndtype: bfloat16\nnum_generations: 8\n")
    (tmp_path / "zero3.json").write_text('{"zero_optimization": {"stage": 3}, "train_batch_size": "auto"}')
    (tmp_path / "train.log").write_text(ENTRIES["The card is full"]["shown"])
    (tmp_path / "train.py").write_text("print('trained')\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    return tmp_path


def test_the_page_has_twenty_sentences_and_a_check_of_each():
    checked = {"The card is full", "A command lacks its packages", "No GPU to measure"}
    assert len(ENTRIES) == PAGE.count("\n### ") == 20
    assert set(ENTRIES) == checked | set(OF_LIBRARIES) | set(NOT_INSTALLED) | set(OF_THE_PROGRAM)


@pytest.mark.parametrize("title", OF_LIBRARIES)
def test_a_sentence_of_a_library_is_in_its_source(title):
    package, file = OF_LIBRARIES[title]
    if (spec := find_spec(package)) is None:
        pytest.skip(f"{package} is not installed")
    source = (Path(spec.origin).parent / file).read_text(encoding="utf-8")
    assert matches(said(title), source), f"{file} of {package} has no such sentence"


def matches(sentence, source):
    """Whether a text of `source` is `sentence`, or begins with it where the sentence ends with dots."""
    start = sentence.removesuffix(" ...")
    texts = [text for node in ast.walk(ast.parse(source)) if (text := pattern(node))]
    if start == sentence:
        return any(re.fullmatch(text, sentence) for text in texts)
    return any(text.startswith(re.escape(start)) for text in texts)


def pattern(node):
    """A regular expression of the text that a string of Python is, with any text for a value; else nothing."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return re.escape(" ".join(node.value.split()))
    if not isinstance(node, ast.JoinedStr):
        return ""
    parts = [re.escape(part.value) if isinstance(part, ast.Constant) else ".+" for part in node.values]
    return re.sub(r"(\\?\s)+", lambda _: r"\ ", "".join(parts)).removesuffix(r"\ ")


def test_the_sentence_of_torch_is_read_whole():
    found = read_oom_message(ENTRIES["The card is full"]["shown"])
    assert found.requested_text == "2.00 GiB"
    assert None not in (found.total_bytes, found.free_bytes, found.in_use_bytes, found.allocated_bytes)
    assert found.reserved_bytes > found.allocated_bytes


@pytest.mark.parametrize("title", OF_THE_PROGRAM)
def test_a_sentence_of_the_program_is_printed(title, folder, capsys):
    assert main(shlex.split(OF_THE_PROGRAM[title])) in (EXIT_OK, EXIT_USAGE)
    printed = capsys.readouterr()
    assert said(title) in " ".join((printed.out + printed.err).split())


def test_the_sentence_on_packages_is_that_of_the_program(monkeypatch):
    monkeypatch.setattr("profiler.domain.machines.extras.missing", lambda modules: tuple(modules))
    sentence = missing_fault("command", "sweep", ["hydra"], Extra.SWEEP).sentence()
    assert sentence.startswith(said("A command lacks its packages").removesuffix(" ..."))


def test_the_sentence_on_the_gpu_is_that_of_the_program():
    title, reason = "No GPU to measure", "the NVIDIA driver does not answer (NVML Shared Library Not Found)"
    (fault,) = real_gpu_faults([{"backend": "cuda"}], VisibleGpus(gpus=(), note=reason), torch_version="2.13.0+cu130")
    assert fault.sentence() == said(title)


@pytest.mark.parametrize("line", dict.fromkeys(COMMANDS))
def test_a_command_of_the_page_runs(line, folder, capsys):
    words = shlex.split(line)
    assert words[:2] == ["python", "-m"]
    name = words[2].removeprefix("profiler.")
    given = words[3:]
    if name == "run":  # raises if a word is wrong
        assert read_run(given).script == folder / "train.py"
        return
    if name == "sweep":
        assert list(read_sweep(given).faults) == []
        return
    if name == "monitor":  # without a driver it ends with 2, as it should
        given = [*given, *HELP_FLAGS[:1]]
    # What a simulation confirms takes seconds, and is checked elsewhere.
    confirmed = ["confirm=false"] if name in ("solve", "advise") else []
    assert main([name, *given, *confirmed]) == EXIT_OK, capsys.readouterr().err


def test_the_estimate_predicts_that_vllm_refuses(folder, capsys):
    (line,) = ENTRIES["No memory for the KV cache"]["lines"].splitlines()
    assert main(["estimate", *shlex.split(line)[3:]]) == EXIT_OK
    assert capsys.readouterr().out.startswith("vLLM does not start: ")
