"""Rows whose readings this repository holds: fitcheck's on a Tesla T4, and CoursIA's on a laptop card."""

import csv
from collections.abc import Iterator, Mapping
from pathlib import Path

from maintenance.benchmark.imported.parts import (
    ATTENTION_TARGETS,
    CAST_TO_FLOAT32,
    LOOP_KEEPS_LOGITS,
    MIB,
    OF_LOOP,
    counters,
    gib_bytes,
)
from maintenance.benchmark.rows.jobs import FOLDER
from profiler.domain.memory import GIB
from profiler.domain.models.builtin_models import find_builtin
from profiler.domain.runs.shared import Metric, Peak, ReadBy, Row, RowCard, RowEnd, RowOrigin, RowSource

_PUBLISHED = Path(__file__).parents[3] / "profiler" / "published" / "measurements.csv"

_T4 = RowCard(name="Tesla T4", memory_bytes=14912 * MIB, spills_to_host=False)
_SESSIONS: Mapping[str, tuple[str, Mapping[str, str]]] = {
    "t4-qlora-2026-09-01.json": (
        "02ebe015adf8cef1f2c33dee6dae41ab813e9773",
        {"torch": "2.10.0+cu128", "transformers": "5.0.0", "peft": "0.19.1"},
    ),
    "t4-sweep-2026-09-15.json": (
        "1e72b19a3b48fca95c3212141c82ffaaa9ba5752",
        {"torch": "2.14.0+cu130", "transformers": "5.17.0", "peft": "0.20.0"},
    ),
    "t4-phase3-2026-09-16.json": (
        "1e72b19a3b48fca95c3212141c82ffaaa9ba5752",
        {"torch": "2.10.0+cu128", "transformers": "5.0.0", "peft": "0.19.1", "bitsandbytes": "0.50.2"},
    ),
    "final-t4-20260921.json": (
        "83aea542a90aec3c5bcb435320409bf5dc49b41e",
        {"torch": "2.10.0+cu128", "transformers": "5.0.0", "peft": "0.19.1", "bitsandbytes": "0.50.2"},
    ),
}
"""Files of Anassbzdd/fitcheck, `data/measurements/`: their commits, and the versions that its manifest states.

Every row of them is held, but for the eight that the manifest calls repeats.
"""

_PINNED_KERNEL = "attention is pinned to the memory-efficient kernel, with the heads of keys and values repeated"

_LAPTOP = RowCard(name="RTX 3070 Laptop", memory_bytes=8 * GIB, spills_to_host=True)
_OF_RELEASE = {"trl 1.12": "selective", "": "selective_in_place"}
"""How the trainer's release computes log-probabilities: trl 1.12 where it is named, else 1.0 to 1.10."""


def fitcheck_rows() -> Iterator[Row]:
    """Yield the readings of fitcheck's authors that `benchmark/fitcheck.csv` has."""
    for row in _read(FOLDER / "fitcheck.csv"):
        commit, versions = _SESSIONS[row["file"]]
        is_quantized = row["tuning"] == "qlora"
        builtin = find_builtin(row["model"])
        model = builtin.name if builtin else row["model"]
        unit = MIB if row["unit_mib"] == "1" else 1
        name = f"{model.rpartition('/')[2]}-{row['tuning']}-{row['attn_implementation']}"
        process = Peak(
            metric=Metric.DEVICE,
            size_bytes=_mib_bytes(row["process_mib"]),
            unit_bytes=unit,
            read_by=ReadBy.COUNTER_AND_CONTEXT,
        )
        yield Row(
            row_id=f"fitcheck-{row['file'].removesuffix('.json')}-{name}"
            f"-{row['per_device_train_batch_size']}x{row['max_length']}"
            f"{'-coder' if 'Coder' in row['model'] else ''}",
            origin=RowOrigin.OTHERS,
            trainer="loop over a transformers model",
            versions=versions,
            card=_T4,
            job={
                **OF_LOOP,
                "gpu": "t4-16gb",
                "model": model,
                "tuning": row["tuning"],
                "lora_rank": int(row["lora_rank"]),
                "lora_target_modules": list(ATTENTION_TARGETS),
                "bnb_4bit_use_double_quant": not is_quantized,
                "optim": "adamw_torch",
                "max_length": int(row["max_length"]),
                "per_device_train_batch_size": int(row["per_device_train_batch_size"]),
                "gradient_checkpointing": True,
                "attn_implementation": row["attn_implementation"],
                "dtype": "float32" if is_quantized else "float16",
                "steps": 2,
            },
            assumed=(),
            beyond=(),
            differs=(
                LOOP_KEEPS_LOGITS,
                *([CAST_TO_FLOAT32] if is_quantized else []),
                *([_PINNED_KERNEL] if row["attn_implementation"] == "sdpa" else []),
            ),
            missing=("lora_alpha",),
            end=RowEnd.OK,
            peaks=(
                *counters(_mib_bytes(row["allocated_mib"]), _mib_bytes(row["reserved_mib"]), unit_bytes=unit),
                process,
            ),
            source=RowSource(
                url=f"https://github.com/Anassbzdd/fitcheck/blob/{commit}/data/measurements/{row['file']}",
                commit=commit,
                licence="MIT",
            ),
        )


def coursia_rows() -> Iterator[Row]:
    """Yield the readings of CoursIA's author, from the list of published measurements."""
    readings = {row["id"]: row for row in _read(_PUBLISHED) if row["source"] == "coursia-2026"}
    for name, row in readings.items():
        if row["metric"] != Metric.ALLOCATED:
            continue
        job_name = name.removesuffix("-allocated")
        reserved = readings[f"{job_name}-reserved"]
        release = next(release for release in _OF_RELEASE if release in row["note"])
        builtin = find_builtin(f"Qwen/{row['model']}")
        yield Row(
            row_id=job_name,
            origin=RowOrigin.OTHERS,
            trainer="trl GRPOTrainer",
            versions={"torch": "2.13.0+cu126", "trl": "1.12"} if release else {"torch": "2.6.0+cu124"},
            card=_LAPTOP,
            job={
                "recipe": "grpo",
                "gpu": "rtx-3080-laptop-16gb",
                "model": builtin.name if builtin else row["model"],
                "tuning": "qlora",
                "lora_rank": int(row["lora_rank"]),
                "lora_alpha": 16,
                "lora_dropout": 0.05,
                "lora_target_modules": ["all-linear"],
                "optim": "adamw_torch_fused",
                "num_generations": int(row["num_generations"]),
                "max_prompt_length": int(row["prompt_tokens"]),
                "max_completion_length": int(row["completion_tokens"]),
                "lengths": "forced",
                "per_device_train_batch_size": int(row["per_device_sequences"]),
                "gradient_accumulation_steps": int(row["gradient_accumulation_steps"]),
                "gradient_checkpointing": True,
                "beta": 0.0,
                "logprobs": _OF_RELEASE[release],
                "steps": 3,
            },
            assumed=(),
            beyond=(),
            differs=("the keys name a laptop card of 16 GB of the same generation",),
            missing=("version of bitsandbytes", *(() if release else ("version of trl",))),
            end=RowEnd.OK,
            peaks=counters(
                gib_bytes(float(row["published"])), gib_bytes(float(reserved["published"])), unit_bytes=gib_bytes(0.001)
            ),
            source=RowSource(url="https://github.com/jsboige/CoursIA", commit="read in 2026-11", licence="MIT"),
        )


def _mib_bytes(size: str) -> int:
    return round(float(size) * MIB)


def _read(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))
