"""Files and programs of others with odd content: one sentence per fault, within limits of time and memory per case.

Many cases run in one test, because each takes some milliseconds. A case that ends in another way than by an exit code
of docs/exit_codes.md is named with how it ended.
"""

import contextlib
import io
import json
import os
import pickle
import resource
import stat
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import builders
import pyarrow.parquet as pq
import pytest
import script_builders
import yaml
from cases import BOMB, Special, bad
from matrix import with_further
from odd_values import ODD, damaged, deep_pickles, variants
from own_histories import recorded
from time_limit import TooSlowError, time_limit

from profiler.advise.main import main as advise
from profiler.claims.main import kept_scripts as read_scripts
from profiler.claims.main import stored_trials
from profiler.domain.models.builtin_models import BUILTIN_MODELS
from profiler.emulation.main import main as emulation
from profiler.estimate.main import main as estimate
from profiler.replay.main import main as replay
from profiler.report.main import main as report
from profiler.run.main import main as run
from profiler.run.results import write_pages
from profiler.storage.files.typed_json import with_checksum
from profiler.storage.records.record_folder import SCRIPTS, TRIALS, RecordFolder, rank_peaks

LIMIT_S = 20
"""Of one case, in time of the processor."""

LIMIT_BYTES = 3 << 30
"""Address space that one case may add."""

CODES = (0, 2, 3, 4)

Main = Callable[[Sequence[str]], int]


@dataclass(frozen=True)
class Odd:
    """One case: what is odd, and the words of a command that reads it."""

    what: str
    main: Main
    words: tuple[str, ...]
    files: Any = None
    """As those of a `Case`."""


@contextlib.contextmanager
def limits() -> Iterator[None]:
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    before = resource.getrlimit(resource.RLIMIT_AS)
    with time_limit(LIMIT_S):
        resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + LIMIT_BYTES, before[1]))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_AS, before)


def problem(case: Odd) -> str:
    """How a case ended if it was not as it should; empty if it was."""
    out, err = io.StringIO(), io.StringIO()
    try:
        with limits(), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = case.main(list(case.words))
    except (Exception, TooSlowError, SystemExit) as error:
        return f"{type(error).__name__}: {error}"[:200]
    lines = err.getvalue().splitlines()
    if code not in CODES:
        return f"exit code {code}: {lines[-1:]}"[:300]
    if code == 2 and not lines:
        return "exit code 2 without a sentence"
    if any("Traceback" in line or not line.isprintable() or len(line) > 5000 for line in lines):
        return f"not a sentence: {lines[-1][:200]}"
    return ""


def check(cases: Iterable[Odd], folder: Path) -> None:
    wrong = []
    with contextlib.chdir(folder):
        for case in cases:
            bad(files=case.files or {}).prepare(folder)
            if said := problem(case):
                wrong.append(f"{case.what}: {said}")
    assert not wrong, "\n".join(wrong)


# ---- the corpus ------------------------------------------------------------------------------------------------------


def snapshots() -> Iterator[Odd]:
    """Memory snapshots: every value in turn another one, and a million tuples inside each other."""
    history = recorded([("alloc", 3 << 20, 0), ("alloc", 700, 7), ("free", 0, 0), ("alloc", 40 << 20, 0)]).snapshot()
    for what, value in variants(history, each=1):
        yield Odd(what, replay, ("f.pickle",), {"f.pickle": pickle.dumps(value)})
    for what, file in deep_pickles(history):
        yield Odd(what, replay, ("f.pickle",), {"f.pickle": file})
    for what, file in damaged(pickle.dumps(history)):
        yield Odd(what, replay, ("f.pickle", "gpu=24GiB"), {"f.pickle": file})


def models() -> Iterator[Odd]:
    """A `config.json` with every value in turn another one."""
    config = {"model_type": "qwen2", **BUILTIN_MODELS["qwen2.5-0.5b"].config, "rope_scaling": {"type": "linear"}}
    for what, value in variants(config, each=1):
        text = json.dumps(value).replace("\\ud800", "")
        yield Odd(what, estimate, ("model=m/config.json", "gpu=h100-80gb"), {"m/config.json": text})


_TRL = {
    "model_name_or_path": "tiny", "per_device_train_batch_size": 8, "num_generations": 8, "max_prompt_length": 64,
    "max_completion_length": 64, "gradient_accumulation_steps": 2, "beta": 0.04, "use_peft": True, "lora_r": 8,
    "lora_target_modules": ["q_proj"], "bf16": True, "optim": "adamw_torch", "learning_rate": 1e-5, "use_vllm": True,
    "vllm_mode": "colocate", "vllm_gpu_memory_utilization": 0.3, "gradient_checkpointing": True, "eval_strategy": "no",
    "fsdp": "full_shard", "model_init_kwargs": {"dtype": "bfloat16"}, "reward_funcs": ["a/b"],
}  # fmt: skip
_VERL = {
    "data": {"train_batch_size": 64, "max_prompt_length": 64, "max_response_length": 64},
    "actor_rollout_ref": {
        "model": {"path": "tiny", "lora_rank": 0},
        "actor": {"ppo_mini_batch_size": 16, "ppo_micro_batch_size_per_gpu": 2, "strategy": "fsdp"},
        "rollout": {"n": 4, "gpu_memory_utilization": 0.4, "tensor_model_parallel_size": 1},
    },
    "trainer": {"n_gpus_per_node": 8, "nnodes": 1},
}


def configurations() -> Iterator[Odd]:
    """Files of trl and verl with every value in turn another one, as YAML writes it."""
    for start in (_TRL, _VERL):
        for what, value in variants(start, each=2):
            text = yaml.safe_dump(value, allow_unicode=False)
            yield Odd(what, estimate, ("config=f.yaml", "model=tiny"), {"f.yaml": text})
    for what, value in variants({key: _TRL[key] for key in list(_TRL)[:6]}, each=1):
        yield Odd(what, advise, ("config=f.yaml", "gpu=24GiB"), {"f.yaml": yaml.safe_dump(value)})


def claimed_trials(words: Sequence[str]) -> int:
    """Read the trials for claims; judging all of them takes seconds."""
    return 0 * len(stored_trials(Path(words[0])))


def claimed_scripts(words: Sequence[str]) -> int:
    """Read the runs of scripts for claims."""
    return 0 * len(read_scripts(Path(words[0])))


def tables() -> Iterator[Odd]:
    """Parquet tables that are damaged, in a folder of a grid and in one that is compared."""
    kept = Path(__file__).parents[2] / "results" / "reference" / "logprobs"
    runs = (kept / "runs.parquet").read_bytes()
    pq.read_table(io.BytesIO(runs))  # its threads and pools take address space that is no case's
    for what, file in damaged(runs):
        yield Odd(what, report, ("g",), {"g/runs.parquet": file})
        yield Odd(what, report, ("g", os.fspath(kept)), {"g/runs.parquet": file})
        yield Odd(what, claimed_trials, (".",), {"g/runs.parquet": file})
    for number, (what, file) in enumerate(list(damaged(runs))[::6]):
        spec = builders.spec(seed=number)
        record = builders.record(spec, outcome=builders.outcome(spec))
        records = {f"s{number}/records/{record.trial_id}.json": TRIALS.content(record)}
        words = (f"file://{Path.cwd()}/s{number}", "figures=png")
        yield Odd(f"in a store, {what}", report, words, {**records, f"s{number}/runs.parquet": file})


_COLUMNS = "script,gpu,status,allocated_bytes,reserved_bytes,device_bytes\n"

_PLACES = ("tried.csv", "blog_2025.csv")


def kept_scripts() -> Iterator[Odd]:
    """Odd files where the runs of scripts are kept."""
    kept = Path(__file__).parents[2] / "results" / "reference" / "scripts"
    found = [path for name in _PLACES if (path := kept / name).is_file()]
    contents: list[tuple[str, Any]] = [
        ("nothing", b""), ("zeros", bytes(1000)), ("not UTF-8", b"\xff\xfe\xfd"), ("a pipe", Special.FIFO),
        ("no end", Special.ZERO), ("itself", Special.LOOP), ("a folder", Special.FOLDER), ("YAML", BOMB),
        ("columns only", _COLUMNS), ("words", _COLUMNS + "a,b,c,d,e,f\n"), ("a long field", _COLUMNS + "x" * 200_000),
        ("too many", _COLUMNS + "a,b,ok,1,2,3,4,5,6,7\n"), ("a quote", _COLUMNS + '"a,b\n' * 100),
        ("a return", _COLUMNS + "a\rb,c\n"), ("huge", _COLUMNS + f"a,b,ok,{10**400},nan,inf\n"),
    ]  # fmt: skip
    for path in found:
        contents += list(damaged(path.read_bytes()))
    for number, (what, content) in enumerate(contents):
        for name in _PLACES:
            folder = f"{number}-{name[0]}"
            yield Odd(f"{name}: {what}", claimed_scripts, (folder,), {f"{folder}/scripts/{name}": content})


def ranks_of(words: Sequence[str]) -> int:
    """Read the peaks of the ranks in a folder: only rank 1 is one of a trial on two GPUs."""
    found = rank_peaks(Path(words[0]))
    assert bool(found) == (words == ["1"])
    return 0


def script_pages(words: Sequence[str]) -> int:
    """Draw the tables and pages of the runs of a script."""
    folder = Path(words[0])
    problems = []
    records = RecordFolder(folder, SCRIPTS, notify=problems.append).read_all()
    if not records:
        sys.stderr.writelines(f"{problem}\n" for problem in problems)
        return 2
    write_pages(folder, records)
    return 0


def script_folders() -> Iterator[Odd]:
    """Records of scripts with every value in turn another one, and files that are none."""
    form, path = SCRIPTS, f"f/records/{'0' * 16}.json"
    stored = json.loads(json.dumps(SCRIPTS.as_json(script_builders.record())))
    for what, value in variants(stored, each=1):
        with contextlib.suppress(ValueError):  # no JSON has a number that is none
            file = with_checksum({form.version_key: form.version, "record": value})
            yield Odd(f"record, {what}", script_pages, ("f",), {path: file})
    for content in (b"", b"\xff", b"[" * 100_000, b"{}", BOMB.encode(), Special.ZERO, Special.FIFO, Special.LOOP):
        yield Odd(f"record, {content!r:.30}", script_pages, ("f",), {path: content})


def rank_folders() -> Iterator[Odd]:
    """Folders of ranks with names that no rank has, and records of another trial."""
    spec = builders.spec(num_processes=2)
    trial = builders.record(spec, label="full", outcome=builders.outcome(spec))
    content = TRIALS.content(trial)
    kept = Path(__file__).parents[2] / "results" / "reference" / "logprobs"
    files = {f"g/{path.name}": path.read_bytes() for path in kept.glob("*.parquet")}
    place = f"records/{trial.trial_id}.json"
    yield Odd("rank 5000000000", report, ("g", "figures=png"), {**files, f"g/ranks/5000000000/{place}": content})
    for name in ("5000000000", "9" * 200, "-1", "01", "٣", "1e9", "0x1", "x", " 1", "2", "1"):
        yield Odd(f"rank {name}", ranks_of, (name,), {f"{name}/ranks/{name}/{place}": content})


def programs() -> Iterator[Odd]:
    """Programs in place of a Python that print something else."""
    answers: list[tuple[str, str]] = [(repr(odd)[:30], json.dumps(odd)) for odd in ODD if odd != 10**400]
    right = {"python": [3, 11], "versions": {"torch": "2.13.0"}, "cuda": None, "missing": [], "path": []}
    probed = {
        "python": "3.11.0", "machine": "x86_64", "system": "Linux", "torch": "2.13.0", "cuda": "13.0", "folder": "/t",
        "commit": "", "requires": [], "triton": True,
    }  # fmt: skip
    answers += [(what, json.dumps(value)) for start in (right, probed) for what, value in variants(start, each=1)]
    answers += [("deep", "[" * 100_000), ("nothing", ""), ("lines", "\n" * 1000), ("cut", '{"python": [3')]
    for number, (what, answer) in enumerate(answers):
        name = f"python{number}"
        file = f"#!/bin/sh\ncat <<'END'\n{answer}\nEND\n"
        yield Odd(f"run, {what}", run, (f"python=./{name}", "backend=simulated", "train.py"), {name: file})
        if number % 2:
            yield Odd(f"emulation, {what}", emulation, ("check", f"python=./{name}"), {name: file})
    endless = {"pythons": "#!/bin/sh\nexec yes\n"}
    yield Odd("run, without end", run, ("python=./pythons", "backend=simulated", "train.py"), endless)
    yield Odd("emulation, without end", emulation, ("check", "python=./pythons"), endless)


def logs() -> Iterator[Odd]:
    """Logs with an out-of-memory message, of which parts are odd, and files of prices."""
    message = (
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate {0}. GPU 0 has a total capacity of {1} of which "
        "{2} is free. Including non-PyTorch memory, this process has {3} memory in use. Of the allocated memory {4} is "
        "allocated by PyTorch, and {5} is reserved by PyTorch but unallocated."
    )
    right = ["2.00 GiB", "79.10 GiB", "1.10 GiB", "78.00 GiB", "70.00 GiB", "7.00 GiB"]
    odd = ("", "x", "-1 GiB", "9e99 GiB", "nan GiB", "1 bytes", "٣ GiB", "1.5 XiB", "1 TiB", "GiB")
    for place in range(len(right)):
        for each in odd:
            text = message.format(*(each if number == place else value for number, value in enumerate(right)))
            yield Odd(f"log {place} {each[:20]}", advise, ("oom=f.log", "model=tiny", "confirm=false"), {"f.log": text})
    header = "gpu,price_per_hour,currency,source,date\n"
    for each in ("", "x", "-1", "nan", "9e999", "9" * 400, '"', "\x00", "٣", "1_0", "0x1"):
        rows = f"{header}h100-80gb,{each},USD,here,2026-01-01\n"
        yield Odd(f"price {each[:20]!r}", estimate, ("model=tiny", "prices=p.csv"), {"p.csv": rows})


GROUPS: dict[str, Callable[[], Iterator[Odd]]] = {
    each.__name__: each
    for each in (snapshots, models, configurations, tables, kept_scripts, script_folders, rank_folders, programs, logs)
}


PARTS = 3
"""Every third case of a group is one of `make test`; the others are further cases."""
GROUPS_IN_PARTS = [(name, part) for part in range(PARTS) for name in GROUPS]


@pytest.mark.parametrize("group", with_further(GROUPS_IN_PARTS, GROUPS_IN_PARTS[: len(GROUPS)]), ids=str)
def test_odd_content_ends_with_a_sentence(group, tmp_path, monkeypatch):
    name, part = group
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("GRPO_VRAM_CACHE", os.fspath(tmp_path / "cache"))
    (tmp_path / "train.py").write_text("raise SystemExit(0)\n")
    check(_executable(islice(GROUPS[name](), part, None, PARTS), tmp_path), tmp_path)


def _executable(cases: Iterable[Odd], folder: Path) -> Iterator[Odd]:
    """Yield the cases; a program of one can be run, and what an earlier one left is removed."""
    for case in cases:
        for name in case.files or {}:
            path = folder / name
            if path.is_symlink() or (path.exists() and not path.is_dir()):
                path.unlink()
            if name.startswith("python"):
                path.write_text(case.files[name])
                path.chmod(path.stat().st_mode | stat.S_IXUSR)
        yield replace(case, files={}) if any(name.startswith("python") for name in case.files or {}) else case


def test_the_corpus_is_large():
    assert sum(1 for group in GROUPS.values() for _ in group()) >= 300


def test_a_case_that_hangs_or_takes_all_memory_is_seen(monkeypatch):
    def hang(_words: Sequence[str]) -> int:
        while True:
            pass

    monkeypatch.setattr("test_odd_content.LIMIT_S", 1)
    assert problem(Odd("hang", hang, ())).startswith("TooSlowError")
    assert problem(Odd("memory", lambda _: len(bytes(LIMIT_BYTES + (1 << 30))), ())).startswith("MemoryError")
    assert "exit code 70" in problem(Odd("code", lambda _: 70, ()))
