"""Runs of canifinetune's authors on an RTX 4080, which their repository keeps."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from maintenance.benchmark.imported.parts import (
    ATTENTION_TARGETS,
    CAST_TO_FLOAT32,
    LOOP_KEEPS_LOGITS,
    OF_LOOP,
    Clone,
    Reader,
    counters,
    gib_bytes,
)
from profiler.domain.models.builtin_models import find_builtin
from profiler.domain.runs.shared import Row, RowCard, RowEnd, RowOrigin, RowSource

_UNIT_BYTES = gib_bytes(0.0001)


def _rows(reader: Reader) -> Iterator[Row]:
    for path in reader.files("benchmarks/results", ".json"):
        found = json.loads(reader.text(path))
        builtin = find_builtin(found["config"]["model_id"])
        if builtin is not None:
            yield _row(path, reader, found, builtin.name)


def _row(path: str, reader: Reader, found: Mapping[str, Any], model: str) -> Row:
    config, measured = found["config"], found["measured"]
    is_quantized = config["method"] == "qlora"
    name = path.rpartition("/")[2].removesuffix(".json").partition("__")[2].lower()
    return Row(
        row_id=f"canifinetune-{name}",
        origin=RowOrigin.OTHERS,
        trainer="loop over a transformers model",
        versions={"torch": found["env"]["torch_version"]},
        card=RowCard(
            name=found["gpu"]["name"], memory_bytes=gib_bytes(found["gpu"]["total_vram_gb"]), spills_to_host=False
        ),
        job={
            **OF_LOOP,
            "gpu": "rtx-4080-16gb",
            "model": model,
            "tuning": config["method"],
            "lora_rank": config["lora_rank"],
            "lora_alpha": config["lora_alpha"],
            "lora_target_modules": list(ATTENTION_TARGETS),
            "bnb_4bit_use_double_quant": True,
            "optim": config["optimizer"],
            "max_length": config["seq_len"],
            "per_device_train_batch_size": config["micro_batch_size"],
            "gradient_checkpointing": config["gradient_checkpointing"],
            "attn_implementation": config["attention_implementation"],
            "dtype": "float32" if is_quantized else "bfloat16",
            "steps": config["steps"],
        },
        assumed=(),
        beyond=(),
        differs=(LOOP_KEEPS_LOGITS, *([CAST_TO_FLOAT32] if is_quantized else [])),
        missing=("versions of transformers, peft and bitsandbytes", "operating system"),
        end=RowEnd.OK,
        peaks=counters(
            gib_bytes(measured["peak_allocated_gb"]), gib_bytes(measured["peak_reserved_gb"]), unit_bytes=_UNIT_BYTES
        ),
        source=RowSource(url=reader.address(path), commit=reader.clone.commit, licence=reader.clone.licence),
    )


CANIFINETUNE = Clone(
    name="DaoyuanLi2816/can-i-finetune-this",
    commit="053ce9e115b213e0ded3634e00d564ef97561f9b",
    licence="MIT",
    rows=_rows,
)
