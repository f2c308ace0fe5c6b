"""unsloth 2026.10.9: `estimate_training_vram` of its studio, read from its file, as its package needs a GPU."""

import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType, SimpleNamespace

from maintenance.benchmark.adapters.question import NotCoveredError, Question, Said

_FILE = "studio/backend/utils/hardware/vram_estimation.py"


def answer(question: Question) -> Said:
    """Return its total without and with its overhead: tensors, and memory of the device."""
    module, job = _module(), question.job
    question.needs("recipe", "sft")
    question.needs("num_processes", 1)
    question.needs("optim", *module.OPTIMIZER_BYTES_PER_PARAM)
    quantization = {"bnb_4bit_use_double_quant": job["bnb_4bit_use_double_quant"]}
    arch = module.extract_arch_config(SimpleNamespace(**question.config, quantization_config=quantization))
    if arch is None:
        raise NotCoveredError("no architecture could be read from config.json")
    is_full = job["tuning"] == "full"
    found = module.estimate_training_vram(
        arch,
        module.TrainingVramConfig(
            training_method=job["tuning"],
            batch_size=job["per_device_train_batch_size"],
            max_seq_length=question.length,
            gradient_checkpointing="true" if job["gradient_checkpointing"] else "none",
            optimizer=job["optim"],
            load_in_4bit=job["tuning"] == "qlora",
            attention_implementation=job["attn_implementation"],
            **({} if is_full else {"lora_rank": job["lora_rank"], "target_modules": question.targets}),
        ),
    )
    return {"allocated": int(found.total - found.cuda_overhead), "device": int(found.total)}


def _module() -> ModuleType:
    name = "unsloth_vram_estimation"
    if name not in sys.modules:
        path = next(Path(folder) / _FILE for folder in sys.path if (Path(folder) / _FILE).exists())
        spec = spec_from_file_location(name, path)
        if spec is None or spec.loader is None:
            raise ImportError(_FILE)
        sys.modules[name] = module_from_spec(spec)
        spec.loader.exec_module(sys.modules[name])
    return sys.modules[name]
