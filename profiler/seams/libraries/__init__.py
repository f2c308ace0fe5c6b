"""The seams of each library, as data, and all of them together."""

from collections.abc import Mapping

from profiler.seams.libraries.bitsandbytes import BITSANDBYTES
from profiler.seams.libraries.datasets import (
    DATASETS,
    DIFFUSERS,
    EVALUATE,
    HUGGINGFACE_HUB,
    OF_PROCESSES,
    TORCHVISION,
)
from profiler.seams.libraries.hugging_face import ACCELERATE, MODELSCOPE, PEFT, TRANSFORMERS
from profiler.seams.libraries.torch import TORCH
from profiler.seams.libraries.torch_cuda import TORCH_CUDA
from profiler.seams.libraries.trl import TRL, VLLM
from profiler.seams.seam import Seam

SEAMS: tuple[Seam, ...] = (
    *TORCH,
    *TORCH_CUDA,
    *TRL,
    *TRANSFORMERS,
    *PEFT,
    *BITSANDBYTES,
    *ACCELERATE,
    *DATASETS,
    *HUGGINGFACE_HUB,
    *DIFFUSERS,
    *TORCHVISION,
    *EVALUATE,
    *MODELSCOPE,
    *VLLM,
    *OF_PROCESSES,
)

SEAM_OF: Mapping[str, Seam] = {seam.key: seam for seam in SEAMS}
"""By owner and name."""
