"""PEFT's comparison of its methods: Llama 3.2 3B on one L40S, trained on MetaMathQA."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from maintenance.benchmark.imported.parts import LOOP_KEEPS_LOGITS, OF_LOOP, Clone, Reader, counters, targets_of
from profiler.domain.cards.gpu import KNOWN_GPUS
from profiler.domain.runs.shared import Row, RowCard, RowEnd, RowOrigin, RowSource

_FOLDER = "method_comparison/MetaMathQA/results"
_GPU = "l40s-48gb"
_PLAIN_OPTIMIZER = "AdamW"


def _rows(reader: Reader) -> Iterator[Row]:
    for path in reader.files(_FOLDER, ".json"):
        found = json.loads(reader.text(path))
        if found["train_info"]["status"] == "success":
            yield _row(path, reader, found)


def _beyond(train: Mapping[str, object], peft: Mapping[str, object] | None) -> tuple[str, ...]:
    """Return what is no plain LoRA, nor full fine-tuning."""
    kinds = [] if peft is None or peft["peft_type"] == "LORA" else [f"peft_type={peft['peft_type']}"]
    names = ("use_dora", "use_bdlora", "velora_config", "monteclora_config")
    kinds += [name for name in names if peft is not None and peft.get(name)]
    if train["optimizer_type"] != _PLAIN_OPTIMIZER:
        kinds.append(f"optimizer {train['optimizer_type']}")
    return tuple(kinds)


def _row(path: str, reader: Reader, found: Mapping[str, Any]) -> Row:
    run, gpu = found["run_info"], KNOWN_GPUS[_GPU]
    train, peft, packages = run["train_config"], run["peft_config"], found["meta_info"]["package_info"]
    beyond = _beyond(train, peft)
    job: dict[str, object] = {
        **OF_LOOP,
        "gpu": _GPU,
        "model": "llama-3.2-3b",
        "tuning": "full" if peft is None else "lora",
        "optim": "adamw_torch",
        "max_length": train["max_seq_length"],
        "per_device_train_batch_size": train["batch_size"],
        "gradient_checkpointing": train["use_gc"],
        "attn_implementation": train["attn_implementation"] or "sdpa",
        "dtype": train["dtype"],
        "torch_empty_cache_steps": 10,
        "steps": 3,
    }
    if peft is not None and not beyond:
        targets = targets_of(peft["target_modules"])
        job |= {"lora_rank": peft["r"], "lora_alpha": peft["lora_alpha"], "lora_target_modules": targets}
    return Row(
        row_id=f"peft-{path.rpartition('/')[2].removesuffix('.json').replace('--llama-3.2-3B', '')}",
        origin=RowOrigin.OTHERS,
        trainer="loop over a transformers model",
        versions={name: packages[f"{name}-version"] for name in ("torch", "transformers", "peft", "bitsandbytes")},
        card=RowCard(
            name=found["meta_info"]["system_info"]["accelerator"], memory_bytes=gpu.memory_bytes, spills_to_host=False
        ),
        job=job,
        assumed=("max_length",),
        beyond=beyond,
        differs=(
            LOOP_KEEPS_LOGITS,
            f"{train['max_steps']} steps ran, of ragged rows; three are named, of the longest that is allowed",
            "the peak is that of the whole run, with evaluations that generate for 50 rows at once",
        ),
        missing=("length of the longest batch", "peak of allocated memory"),
        end=RowEnd.OK,
        peaks=counters(None, found["train_info"]["accelerator_memory_max"], unit_bytes=1),
        source=RowSource(url=reader.address(path), commit=reader.clone.commit, licence=reader.clone.licence),
    )


PEFT = Clone(
    name="huggingface/peft",
    commit="5d602fdbff04c33c1c4de55cda9d4ae1d7cb7e40",
    licence="Apache-2.0",
    rows=_rows,
)
