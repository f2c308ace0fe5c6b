"""Rows whose authors publish the script that measured them: the script itself runs on the simulated card."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from maintenance.benchmark.adapters.question import GIB, MIB, Said
from maintenance.benchmark.rows.jobs import config_of
from profiler.domain.models.builtin_models import find_builtin
from profiler.domain.runs.shared import Row
from profiler.storage.files.atomic import write_atomically


@dataclass(frozen=True, kw_only=True)
class PublishedScript:
    """A script that its authors publish with the rows that it measured."""

    package: str
    """The pinned source distribution that holds it."""
    path: str
    """Of the script in the distribution; with `command`, of the one that pip makes for it."""
    command: str = ""
    """The function of the package's command, as `module:name`; "" where the distribution has the script."""
    modules: str = "."
    """Folder of the distribution that is on the search path."""
    address: str
    """Beginning of the addresses of its rows."""
    words: Callable[[Row], Sequence[str]]
    """Its arguments for a row."""
    said: Callable[[Mapping[str, float]], Said]
    """Reads the part `measured` of the JSON that it prints."""


def _fitcheck_words(row: Row) -> Sequence[str]:
    job = row.job
    quantized = ("--quant", "nf4") if job["tuning"] == "qlora" else ()
    return (
        model_id(row),
        *("--precision", "fp16", *quantized, "--grad-checkpoint"),
        *("--attn-impl", str(job["attn_implementation"]), "--lora-r", str(job["lora_rank"])),
        *("--batch-size", str(job["per_device_train_batch_size"]), "--seq-len", str(job["max_length"])),
        *("--gpu", "t4", "--no-predict", "--json"),
    )


def _fitcheck_said(measured: Mapping[str, float]) -> Said:
    return {name: round(measured[f"peak_{name}_mib"] * MIB) for name in ("allocated", "reserved")}


def _canifinetune_words(row: Row) -> Sequence[str]:
    job = row.job
    checkpointing = "--gradient-checkpointing" if job["gradient_checkpointing"] else "--no-gradient-checkpointing"
    return (
        *("bench", "--model", model_id(row), "--method", str(job["tuning"]), "--optimizer", str(job["optim"])),
        *("--lora-rank", str(job["lora_rank"]), "--seq-len", str(job["max_length"]), "--steps", str(job["steps"])),
        *("--micro-batch-size", str(job["per_device_train_batch_size"]), checkpointing),
        *("--attn", str(job["attn_implementation"]), "--json"),
    )


def _canifinetune_said(measured: Mapping[str, float]) -> Said:
    return {name: round(measured[f"peak_{name}_gb"] * GIB) for name in ("allocated", "reserved")}


SCRIPTS = (
    PublishedScript(
        package="canifinetune==0.1.0",  # of the time of the rows: later ones train under autocast
        path="command.py",
        command="canifinetune.cli:app",
        modules="src",
        address="https://github.com/DaoyuanLi2816/can-i-finetune-this/",
        words=_canifinetune_words,
        said=_canifinetune_said,
    ),
    PublishedScript(
        package="fitcheck-llm==0.3.1",
        path="scripts/measure.py",
        address="https://github.com/Anassbzdd/fitcheck/",
        words=_fitcheck_words,
        said=_fitcheck_said,
    ),
)


def model_id(row: Row) -> str:
    """Return the name of a row's model on the hub."""
    builtin = find_builtin(str(row.job["model"]))
    return builtin.hub_ids[0] if builtin is not None else str(row.job["model"])


def script_of(row: Row) -> PublishedScript | None:
    """Return the script that measured a row, if its authors publish it."""
    return next((each for each in SCRIPTS if row.source.url.startswith(each.address)), None)


def has_script(row: Row) -> bool:
    """Return whether the authors of a row publish the script that measured it."""
    return script_of(row) is not None


def run_scripts(rows: Sequence[Row], folder: Path) -> dict[str, Said]:
    """Run the script of each row that has one, as it is, and return what torch's counters said in it.

    Args:
        rows: Those without a published script are left out.
        folder: Of the distributions, and of what scripts that ended have printed, which are not run again.
    """
    found = {}
    for row in rows:
        script = script_of(row)
        if script is None:
            continue
        printed = folder / "printed" / f"{row.row_id}.txt"
        text = printed.read_text("utf-8") if printed.exists() else _run(script, row, folder)
        if measured := read_printed(text):
            write_atomically(printed, text.encode())
            found[row.row_id] = script.said(measured)
    return found


def read_printed(text: str) -> Mapping[str, float] | None:
    """Return the part `measured` of the JSON among the lines that a script printed; None if it did not end."""
    _, begin, rest = text.partition("\n{\n")
    if not begin:
        return None
    measured: Mapping[str, float] = json.JSONDecoder().raw_decode("{\n" + rest)[0]["measured"]
    return measured


def _run(script: PublishedScript, row: Row, folder: Path) -> str:
    source = _source(script, folder)
    models = folder / "models"
    if find_builtin(str(row.job["model"])) is None:
        config = models / model_id(row) / "config.json"
        write_atomically(config, json.dumps(config_of(model_id(row))).encode())
    models.mkdir(parents=True, exist_ok=True)
    keys = (f"gpu={row.job['gpu']}", "backend=simulated", f"results_dir={folder.absolute() / 'results'}")
    done = subprocess.run(
        (sys.executable, "-m", "profiler.run", *keys, str(source / script.path), *script.words(row)),
        cwd=models,
        env={**os.environ, "PYTHONPATH": str(source / script.modules)},
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    return done.stdout


def _source(script: PublishedScript, folder: Path) -> Path:
    """Return the unpacked distribution; download it first if it is not there."""
    name, version = script.package.split("==")
    place = folder.absolute() / f"{name}-{version}"  # a path with "=" would be read as a key
    if not place.exists():
        pip = (sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", ":all:")
        subprocess.run((*pip, "--dest", str(folder), script.package), check=True)
        (archive,) = folder.glob(f"{name.replace('-', '_')}-{version}.tar.gz")
        shutil.unpack_archive(archive, place)
    (source,) = place.iterdir()
    if script.command:
        module, _, name = script.command.partition(":")
        (source / script.path).write_text(f"import sys\nfrom {module} import {name}\nsys.exit({name}())\n")
    return source
