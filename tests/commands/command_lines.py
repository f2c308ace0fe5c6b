"""Command lines of every command with keys of its own, and what each is answered: values, sentences or a help text.

`python tests/commands/command_lines.py` writes the kept answers again.
"""

import contextlib
import hashlib
import io
import json
import os
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path, PurePath

from profiler import console
from profiler.config.options.command_words import HELP_FLAGS
from profiler.domain.errors import Fault, UsageError
from profiler.storage.foreign.published import read_published_claims

KEPT = Path(__file__).parent / "said.json"
HELP = Path(__file__).parent / "help"

TEXTS = (
    *("", "null", "true", "True", "yes", "0", "3", "-1", "0.05", "5%", "nan", "08", "json", "jsno", "tight", "a,b"),
    *("[a", "'json'", "x y", "4090", "8.10", "0.18", "any", "a.png", "a.gif", "png,pdf", "guide-batch", "article-trl"),
    *("2.13.0", "/dev/null", "expandable_segments:True", "a\0b"),
)

OWN = {
    "estimate": ["config", "trl", "format", "strict", "fail_if", "gpu_memory_gib", "compute_capability", "prices"],
    "solve": ["margin", "confirm", "figure", "format", "fail_if"],
    "advise": ["oom", "margin", "confirm", "format"],
    "forecast": ["lengths", "prompts", "completions", "growth", "log", "seeds", "levers", "fail_if"],
    "share": ["file", "confirm", "config"],
    "claims": ["results_dir", "claim", "source", "format", "write"],
    "replay": ["alloc_conf", "gpu", "device", "figure", "format"],
    "report": ["figures", "max_increase", "into"],
    "emulation": ["torch", "python", "gpu", "strict"],
    "seams": ["all"],
    "run": ["steps"],
    "monitor": ["watch"],
}
"""The keys of each command; of `run` and `monitor` one."""

BEFORE = {
    "estimate": ("model=tiny",),
    "solve": ("lora_rank,steps", "model=tiny"),
    "advise": ("model=tiny",),
    "forecast": ("model=tiny", "completions=400"),
    "replay": ("snapshot.pickle",),
    "share": ("results/x",),
    "report": ("results/x",),
    "emulation": ("check",),
}
"""Words that a command needs."""

AFTER = {"run": (Path(__file__).name,)}
"""A script, in the folder of this file."""

OTHERS = {
    "estimate": (
        *("gpu_memory_gib=24 compute_capability=8.6", "gpu_memory_gib=24 gpu=h100", "gpu=any prices=a.csv"),
        *("gpu=h100 prices=a.csv", "gpu=any beta=0,1", "config=a config=b config=a", "config=a.yaml trl=0.18"),
        *("trainer=sft", "data.train_batch_size=4", "timeout_s=1", "beta=0,1 seed=1,2 beta=3", "--gpu-memory-gib 24"),
        *("format=json format=table", "format=jsno format=table", "[=x", "strict=true strict=x fail_if=x"),
    ),
    "solve": (
        *("gpu model=tiny", "max_length,lora_rank lora_rank=8", "max_length model=tiny figure=a.png", "margin=5% gpu"),
        *("lora_rank,max_completion_length lora_rank=4,8", "-x", "max_length max_length=8", "confirm gpu"),
    ),
    "advise": ("oom=a.log oom=b.log", "gpu=any", "gpu=h100,l4 beta=0,1", "oom", "margin=0.1 margin=x", "trl=0.18"),
    "forecast": ("", "gpu=any completions=5", "completions=5 beta=0,1", "tokenizer=x completions=5", "log=a lengths=b"),
    "share": ("", "a b file=x", "a model=tiny beta=0,1", "-x", "a/b=c", "a format=json", "a confirm"),
    "claims": ("claim=guide-batch source=article-trl", "write=false claim=guide-batch format=json", "clam=x claim=x"),
    "replay": ("a.pickle b", "gpu=a100-40gb figure=r.png", "-x", "--", "=x", "a/b=c", "device=1 device=x", "a b=c"),
    "report": ("a b c", "-x", "=x", "a/b=c", "results/x figures=svg,png", "a b max_increase=2%", "'results/*/x'"),
    "emulation": (
        "install",
        "install torch=2.13.0",
        "install gpu=h100",
        "chek",
        "install python=/dev/null",
        "check -x",
    ),
    "seams": ("all=true all=false", "x", "all=true x", "-x", "all true", "al=true", "al=true all=x"),
    "run": ("backend=cuda backend=cpu", "python train.py", "-x", "--", "steps=3"),
    "monitor": ("true", "format=json true", "watch=1s", "model=tiny true", "model=tiny", "watch=1s true", "=1", "-x"),
}
"""Further lines: several keys, words that are no key, and words that only one command has."""

UNKNOWN = ("modle=1", "formt=json", "nonsense=1", "--nonsense 1", "--nonsense=1", "--nonsense", "=1", "nonsense", "''")

COMPLETED = (
    *("", "es", "estimate ", "estimate mod", "estimate form", "estimate format=", "estimate format=j", "estimate gpu="),
    *("solve ", "solve marg", "solve max_c", "solve fail_if=", "solve confirm=t", "advise oo", "advise format="),
    *("claims ", "claims wr", "claims write=", "replay ", "replay sna", "replay fi", "replay format=j", "report in"),
    *("report results/x fig", "emulation ", "emulation check st", "emulation check strict=", "seams ", "seams all="),
    *("run ", "run ste", "run backend=", "run train.py ba", "monitor wat", "monitor format=", "monitor mod"),
    *("sweep", "sweep +gr", "sweep +grid=lo", "sweep +grid=full num_g", "nosuch ", "nosuch x"),
)
"""Lines after the program, up to the cursor."""


def lines() -> Iterator[str]:
    """Yield every command line without the program, as a shell would read it."""
    for name, keys in OWN.items():
        for words in _words_of(name, keys):
            yield shlex.join([name, *words])


def _words_of(name: str, keys: Sequence[str]) -> Iterator[Sequence[str]]:
    before, after = BEFORE.get(name, ()), AFTER.get(name, ())
    for key in keys:
        yield from ([*before, f"{key}={text}", *after] for text in TEXTS)
        for text in ("json", "true", "3", "x", "-1"):
            yield [*before, f"--{key.replace('_', '-')}", text, *after]
            yield [*before, f"--{key}={text}", *after]
        yield [*before, f"--{key}", *after]
        yield [*before, key, *after]
        yield [*before, f"{key[:-1]}=1", *after]
        yield from ([f"{key}=x", flag] for flag in HELP_FLAGS)
    for line in UNKNOWN:
        yield [*before, *shlex.split(line), *after]
    for line in OTHERS[name]:
        yield shlex.split(line)
    yield []
    yield from ([flag] for flag in HELP_FLAGS)


def answer(line: str) -> object:
    """Return what a line is answered: the help text, sentences, or the values that a line without keys has not."""
    name, *words = shlex.split(line)
    if name not in ("run", "monitor") and set(words) & set(HELP_FLAGS):
        return _help(name, words)
    try:
        found, faults = _read(name, words)
    except UsageError as error:
        found, faults = {}, error.faults
    if faults:
        return [_short(fault.sentence()) for fault in faults]
    return {key: value for key, value in found.items() if value != _plain(name).get(key)}


def _short(sentence: str) -> str:
    """Return a sentence; of one that lists much, both ends and a digest."""
    if len(sentence) <= 2 * _END:
        return sentence
    return f"{sentence[:_END]} [{hashlib.sha256(sentence.encode()).hexdigest()[:8]}] {sentence[-_END:]}"


_END = 80
"""Characters of each end of a long sentence that are kept."""


@cache
def _plain(name: str) -> Mapping[str, str]:
    words = {"monitor": ["true"], "claims": [], "seams": []}.get(name, [*BEFORE.get(name, ()), *AFTER.get(name, ())])
    return _read(name, words)[0]


def _read(name: str, words: Sequence[str]) -> tuple[dict[str, str], Sequence[Fault]]:
    own = f"profiler.{name}.command"
    read = import_module(own if find_spec(own) else f"profiler.{name}.main").read_command
    command = read(words, _claims()) if name == "claims" else read(words)
    of_rest = getattr(command, "rest", None)
    declared = (getattr(of_rest, "options", None), of_rest, getattr(command, "options", None))
    parts = [vars(each) for each in declared if each is not None]
    found = {key: value for part in (*parts, vars(command)) for key, value in part.items()}
    faults = found.pop("faults", ())
    shown = {key: _shown(value) for key, value in sorted(found.items()) if key not in _NOT_VALUES}
    return shown, faults


_claims = cache(read_published_claims)

_NOT_VALUES = ("rest", "options", "wants_help", "script", "launch")


def _shown(value: object) -> str:
    if isinstance(value, list | tuple):
        return f"({', '.join(map(_shown, value))})"
    return str(value) if isinstance(value, PurePath) else repr(value)


def _help(name: str, words: Sequence[str]) -> str:
    shown = _printed(import_module(f"profiler.{name}.main").main, words)
    return "the help text" if shown == help_of(name) else shown


@cache
def help_of(name: str) -> str:
    """Return the help text of a command."""
    return _printed(console.main, [name, "--help"])


def completed(line: str) -> list[str]:
    """Return what completion offers after `grpo-vram` and `line`."""
    os.environ["COMP_LINE"] = f"{console.NAME} {line}"
    os.environ["COMP_POINT"] = str(len(os.environ["COMP_LINE"]))
    return _printed(console.main, ["-sc", "query=bash"]).split()


def _printed(main: Callable[[Sequence[str]], int], words: Sequence[str]) -> str:
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        code = main(words)
    assert code == 0
    return out.getvalue()


def everything() -> dict[str, object]:
    """Return the answers to all lines, and what completion offers."""
    return {
        "lines": {line: answer(line) for line in lines()},
        "completed": {line: completed(line) for line in COMPLETED},
    }


if __name__ == "__main__":
    os.chdir(KEPT.parent)
    KEPT.write_text(json.dumps(everything(), indent=0, ensure_ascii=False) + "\n", encoding="utf-8")
    for each in console.COMMANDS:
        (HELP / f"{each}.txt").write_text(help_of(each), encoding="utf-8")
