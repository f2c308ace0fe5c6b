"""IBM's benchmark of fms-acceleration on A100 cards: the rows without kernels or formats of its own."""

import csv
from collections.abc import Iterator, Mapping

from maintenance.benchmark.imported.parts import ATTENTION_TARGETS, MIB, Clone, Reader
from profiler.domain.cards.gpu import KNOWN_GPUS
from profiler.domain.models.builtin_models import find_builtin
from profiler.domain.runs.shared import Metric, Peak, ReadBy, Row, RowCard, RowEnd, RowOrigin, RowSource

_PATH = "scripts/benchmarks/refs/a100_80gb.csv"
_GPU = "a100-80gb"
_MODELS = {"mistralai/Mistral-7B-v0.1": "mistral-7b-v0.1", "mistralai/Mixtral-8x7B-Instruct-v0.1": "mixtral"}
_LENGTH = 4096
_VERSIONS = {"torch": "2.4.1", "trl": "0.13.0", "transformers": "4.48.1", "peft": "0.13.2", "bitsandbytes": "0.43.3"}
"""Of `refs/requirements.txt`."""
_PLAIN = ("none", "baseline-peft-bnb")
_FSDP_1 = "FSDP 1 with FULL_SHARD; the keys are those of FSDP 2"


def _rows(reader: Reader) -> Iterator[Row]:
    for row in csv.DictReader(reader.text(_PATH).splitlines()):
        is_whole = row["framework_config"] in _PLAIN and row["mem_peak_torch_mem_alloc_in_bytes"]
        if is_whole and row["model_name_or_path"] in _MODELS:
            yield _row(row, reader)


def _row(row: Mapping[str, str], reader: Reader) -> Row:
    tuning = "qlora" if row["framework_config"] == "baseline-peft-bnb" else row["peft_method"] or "full"
    processes, batch = int(row["num_gpus"]), int(row["per_device_train_batch_size"])
    model = row["model_name_or_path"]
    builtin = find_builtin(model)
    gpu = KNOWN_GPUS[_GPU]
    job: dict[str, object] = {
        "recipe": "sft",
        "logprobs": "nll",
        "gpu": _GPU,
        "model": builtin.name if builtin else model,
        "tuning": tuning,
        "optim": "adamw_torch",
        "max_length": _LENGTH,
        "lengths": "forced",
        "per_device_train_batch_size": batch,
        "gradient_accumulation_steps": 1,
        "gradient_checkpointing": True,
        "attn_implementation": "flash_attention_2",
        "dtype": row["torch_dtype"],
        "bf16": row["bf16"] == "TRUE",
        "steps": 3,
    }
    if tuning != "full":
        targets = list(ATTENTION_TARGETS)
        job |= {"lora_rank": int(row["r"]), "lora_alpha": 16, "lora_dropout": 0.1, "lora_target_modules": targets}
    if processes > 1:
        job |= {"num_processes": processes, "distributed_type": "fsdp"}
    used = Peak(
        metric=Metric.DEVICE,
        size_bytes=round(float(row["mem_nvidia_mem_reserved"]) * MIB),
        unit_bytes=MIB,
        read_by=ReadBy.NVML,
    )
    tensors = Peak(
        metric=Metric.ALLOCATED,
        size_bytes=int(row["mem_peak_torch_mem_alloc_in_bytes"]),
        unit_bytes=1,
        read_by=ReadBy.TRAINER_LOG,
    )
    return Row(
        row_id=f"fms-{_MODELS[model]}-{tuning}-{processes}x{batch}",
        origin=RowOrigin.OTHERS,
        trainer="trl SFTTrainer, by fms-hf-tuning",
        versions=_VERSIONS,
        card=RowCard(name=gpu.title, memory_bytes=gpu.memory_bytes, spills_to_host=False),
        job=job,
        assumed=("bnb_4bit_use_double_quant",) if tuning == "qlora" else (),
        beyond=(_FSDP_1,) if processes > 1 else (),
        differs=("100 steps ran; three are named, as every row has the same length",),
        missing=(
            "max_length, which follows from tokens and samples per second (4,096 in every row)",
            "allocator settings",
            *(("mean over the cards",) if processes > 1 else ()),
        ),
        end=RowEnd.OK,
        peaks=(tensors, used),
        source=RowSource(url=reader.address(_PATH), commit=reader.clone.commit, licence=reader.clone.licence),
    )


FMS = Clone(
    name="foundation-model-stack/fms-acceleration",
    commit="876e2ed6fc4e966785e3f4315f5ee3cdf8e3d097",
    licence="Apache-2.0",
    rows=_rows,
)
