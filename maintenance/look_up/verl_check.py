"""Run in a process of its own, in a folder with verl's package: verl's own check of a configuration, as JSON.

verl's packages import what is not installed here, such as ray, and names of other versions of transformers. Such
imports get an object that answers anything, because the check itself only reads the configuration.
"""

import importlib
import importlib.abc
import importlib.machinery
import json
import sys
import types
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

_PACKAGES = (
    *("ray", "tensordict", "codetiming", "dill", "pybind11", "pylatexenc", "torchdata", "mathruler", "pyext", "zmq"),
    *("transformers", "torch", "torchvision", "peft", "accelerate", "datasets", "triton", "wandb", "tensorboard"),
    *("vllm", "sglang", "megatron", "liger_kernel", "flash_attn", "cupy", "uvloop", "fastapi", "uvicorn", "cachetools"),
    *("aiohttp", "starlette"),
)
"""Packages that verl imports, of which a part or everything may be missing here."""


class _Absent(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds what is missing of `_PACKAGES`; what is there was found before."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        del path, target
        if fullname.partition(".")[0] not in _PACKAGES:
            return None
        return importlib.machinery.ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        found = MagicMock(name=spec.name)
        found.__path__, found.__spec__, found.__name__, found.__version__ = [], spec, spec.name, "1.0"
        return found

    def exec_module(self, module: types.ModuleType) -> None:
        """Do nothing."""


def checked(folder: Path, name: str, overrides: Sequence[str]) -> tuple[bool, str]:
    """Return whether verl in `folder` accepts a configuration, and what it says."""
    sys.path.insert(0, str(folder))
    import hydra
    from omegaconf import OmegaConf

    try:
        with hydra.initialize_config_dir(str(folder / "verl" / "trainer" / "config"), version_base=None):
            config = hydra.compose(name, overrides=list(overrides))
        sys.meta_path.append(_Absent())
        validate: Any = importlib.import_module("verl.utils.config")
        validate.validate_config(config=config, use_reference_policy=False, use_critic=False)
    except Exception as error:  # whatever verl or Hydra raise is their answer, except that they cannot be imported
        if isinstance(error.__cause__, ImportError) or isinstance(error, ImportError):
            raise
        return False, " ".join(str(error).split("\n")[0].split())
    actor: Any = OmegaConf.to_container(config.actor_rollout_ref.actor)
    section = "megatron" if actor["strategy"] == "megatron" else "fsdp_config"
    lacks = "" if section in actor else f", though it has no {section}, which strategy {actor['strategy']} reads"
    return True, f"accepted{lacks}"


if __name__ == "__main__":
    stdout, sys.stdout = sys.stdout, sys.stderr
    accepted, answer = checked(Path(sys.argv[1]), sys.argv[2], sys.argv[3:])
    stdout.write(json.dumps({"accepted": accepted, "answer": answer}))
