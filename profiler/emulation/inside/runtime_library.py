"""Keeps vLLM to the emulated runtime where a wheel brings the vendor's along."""

from collections.abc import Callable
from pathlib import Path
from types import ModuleType

RUNTIME = "libcudart"


def find_emulated_runtime(library: Path) -> Callable[[ModuleType], None]:
    """Return what has to be done after the import of vLLM's `cuda_wrapper`.

    vLLM takes the first library of that name that the process has loaded. torchvision's wheel brings one of its own,
    which finds no card behind the emulated driver.
    """

    def after_import(wrapper: ModuleType) -> None:
        find = wrapper.find_loaded_library

        def found(name: str) -> str | None:
            answer: str | None = str(library) if name == RUNTIME else find(name)
            return answer

        wrapper.find_loaded_library = found  # type: ignore[attr-defined]

    return after_import
