"""The runtime library that vLLM finds in an emulated process."""

from pathlib import Path
from types import SimpleNamespace

from profiler.emulation.inside.prepare import find_emulated_runtime


def test_vllm_finds_the_emulated_runtime_and_other_libraries_as_before():
    wrapper = SimpleNamespace(find_loaded_library=lambda name: f"/wheel/{name}.so")
    find_emulated_runtime(Path("/emulated/libcudart.so.13"))(wrapper)
    assert wrapper.find_loaded_library("libcudart") == "/emulated/libcudart.so.13"
    assert wrapper.find_loaded_library("cumem_allocator") == "/wheel/cumem_allocator.so"
