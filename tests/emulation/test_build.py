"""Libraries are built once per installed torch, atomically."""

from dataclasses import replace
from pathlib import Path

import pytest

from profiler.domain.errors import ProfilerError
from profiler.emulation.building import build
from profiler.emulation.building import build as compiler
from profiler.emulation.building.build import (
    DESCRIPTION,
    CompilerError,
    cache_key,
    compile_library,
    defines,
    first_error,
    libraries_of,
)
from profiler.emulation.building.library_sources import compiled_files
from profiler.emulation.interpreter import Interpreter


@pytest.fixture
def interpreter(tmp_path):
    library = tmp_path / "site" / "torch" / "lib" / "libtorch_cuda.so"
    library.parent.mkdir(parents=True)
    library.write_bytes(b"1234")
    return Interpreter(
        executable=tmp_path / "python",
        torch="2.13.0+cu130",
        cuda="13.0",
        commit="abc",
        torch_folder=library.parents[1],
        search_path=(tmp_path / "own", library.parents[2]),
        requires=("nvidia-cudnn-cu13==9.20.0.48; x", "nvidia-nccl-cu13==2.29.7", "triton==3.7.1"),
        has_triton=True,
    )


@pytest.fixture
def built(monkeypatch):
    """Replaces the compilation; counts."""
    calls = []

    def compile_nothing(interpreter, files, folder):
        calls.append(folder)
        (folder / DESCRIPTION).write_text("{}")

    monkeypatch.setattr(build, "_build", compile_nothing)
    monkeypatch.setattr(build, "require_compilers", lambda: None)
    return calls


def files_of(interpreter: Interpreter) -> list[Path]:
    return compiled_files(interpreter.torch_folder, interpreter.search_path)


def test_the_key_changes_with_torch_its_files_and_the_sources(interpreter, monkeypatch):
    keys = {cache_key(interpreter, files_of(interpreter))}
    keys |= {
        cache_key(replace(interpreter, **{key: "x"}), files_of(interpreter)) for key in ("torch", "commit", "cuda")
    }
    files_of(interpreter)[0].write_bytes(b"12345")
    keys.add(cache_key(interpreter, files_of(interpreter)))
    monkeypatch.setattr(build, "every_source", lambda: [build.driver_folder() / "card.c"])
    keys.add(cache_key(interpreter, files_of(interpreter)))
    assert len(keys) == 6
    assert all(key.startswith("torch-") for key in keys)


def test_the_key_does_not_depend_on_where_torch_is_installed(interpreter, tmp_path):
    before = cache_key(interpreter, files_of(interpreter))
    other = interpreter.site_packages.rename(tmp_path / "other")
    moved = replace(interpreter, torch_folder=other / "torch", search_path=(tmp_path / "own", other))
    assert cache_key(moved, files_of(moved)) == before


def test_a_release_installed_in_front_of_torchs_packages_counts(interpreter, tmp_path):
    """Libraries are built for the files that will be loaded: of each package those that are found first."""

    def with_file(folder: str, size: int) -> Path:
        path = tmp_path / folder / "bitsandbytes" / "libbitsandbytes_cuda130.so"
        path.parent.mkdir(parents=True)
        path.write_bytes(b"x" * size)
        return path

    (of_torch,) = files_of(interpreter)
    behind = with_file("site", 1)
    assert files_of(interpreter) == [of_torch, behind]
    keys = [cache_key(interpreter, files_of(interpreter))]
    in_front = with_file("own", 2)
    assert files_of(interpreter) == [of_torch, in_front]
    keys.append(cache_key(interpreter, files_of(interpreter)))
    assert keys[0] != keys[1]


def test_libraries_are_built_once_and_reused(interpreter, built, tmp_path):
    first = libraries_of(interpreter, folder=tmp_path / "cache")
    assert libraries_of(interpreter, folder=tmp_path / "cache") == first
    assert len(built) == 1
    assert (first / DESCRIPTION).exists()


def test_a_build_that_fails_leaves_nothing_and_is_tried_again(interpreter, built, tmp_path, monkeypatch):
    def fail(interpreter, files, folder):
        (folder / "half.so").touch()
        raise CompilerError("gcc could not build half.so: no reason")

    with monkeypatch.context() as patch:
        patch.setattr(build, "_build", fail)
        with pytest.raises(CompilerError):
            libraries_of(interpreter, folder=tmp_path / "cache")
    assert [path.name for path in (tmp_path / "cache").iterdir() if path.is_dir()] == []
    libraries_of(interpreter, folder=tmp_path / "cache")
    assert len(built) == 1


def test_what_an_interrupted_build_left_is_replaced(interpreter, built, tmp_path):
    target = tmp_path / "cache" / cache_key(interpreter, files_of(interpreter))
    target.mkdir(parents=True)
    (target / "half.so").touch()
    assert libraries_of(interpreter, folder=tmp_path / "cache") == target
    assert not (target / "half.so").exists()


def test_a_folder_that_cannot_be_written_is_one_sentence(interpreter, built, tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(ProfilerError, match=r"could not be kept \(Not a directory\)"):
        libraries_of(interpreter, folder=tmp_path / "file" / "cache")


def test_reported_versions_are_those_that_torch_requires(interpreter):
    assert defines(interpreter) == {"CUDA_VERSION": 13000, "CUDNN_VERSION": 92000, "NCCL_VERSION": 22907}
    with pytest.raises(ProfilerError, match="which version of cudnn it requires"):
        defines(replace(interpreter, requires=()))


def test_missing_compilers_are_named(monkeypatch):
    monkeypatch.setattr(compiler.shutil, "which", lambda name: None if name == "g++" else f"/bin/{name}")
    with pytest.raises(CompilerError, match=r"^g\+\+ not found: .* apt-get install build-essential"):
        compiler.require_compilers()


def test_a_failing_compiler_is_one_sentence_with_its_first_error(tmp_path):
    source = tmp_path / "wrong.c"
    source.write_text("int f(void) { return missing; }\n")
    with pytest.raises(CompilerError, match=r"^gcc could not build wrong\.so: .*error.*missing"):
        compile_library("gcc", tmp_path / "wrong.so", [source], [])
    with pytest.raises(CompilerError, match="could not be started"):
        compile_library("no-such-compiler", tmp_path / "wrong.so", [source], [])
    assert first_error("") == "it gave no reason"
