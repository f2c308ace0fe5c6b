"""Names that an installed torch expects, and what is generated for them."""

import shutil
import subprocess

import pytest

from profiler.emulation.building.library_sources import (
    ANSWERS,
    driver_folder,
    expected_libraries,
    generated_answers,
    library_of,
    read_seen,
    seen_entry_points,
    undefined_names,
    version_script,
)

LISTING = """\
                 U cudaMalloc@libcudart.so.13
                 U cublasCreate_v2@libcublas.so.13
                 U cuMemMap
                 U _ZN3c105ErrorC1Ev
                 U memcpy@GLIBC_2.14
                 w __cudaInitModule
                 U cufftExecC2C
                 U custom_function
"""


def test_the_vendors_names_are_read_with_their_versions():
    assert undefined_names(LISTING) == {
        "cudaMalloc": "libcudart.so.13",
        "cublasCreate_v2": "libcublas.so.13",
        "cuMemMap": "",
        "__cudaInitModule": "",
        "cufftExecC2C": "",
        "custom_function": "",
    }


@pytest.mark.parametrize(
    ("symbol", "version", "library"),
    [
        ("cudaMalloc", "libcudart.so.13", "cudart"),
        ("cusparseSpMM", "libcusparse.so.12", "cusparse"),
        ("cusparseLtInit", "", "cusparseLt"),
        ("cublasLtMatmul", "", "cublasLt"),
        ("cuFileRead", "", "cufile"),
        ("cuMemMap", "", "cuda"),
        ("__cudaRegisterFatBinary", "", "cudart"),
        ("ncclAllReduce", "", "nccl"),
        ("custom_function", "", None),
    ],
)
def test_the_library_of_a_name(symbol, version, library):
    assert library_of(symbol, version) == library


@pytest.mark.skipif(shutil.which("gcc") is None or shutil.which("nm") is None, reason="gcc or nm not found")
def test_libraries_are_read_from_compiled_files_of_one_version_of_cuda(tmp_path):
    def compiled(name: str, soname: str) -> object:
        vendor = tmp_path / soname
        subprocess.run(["gcc", "-shared", "-o", vendor, f"-Wl,-soname,{soname}", "-x", "c", "/dev/null"], check=True)
        source = tmp_path / f"{name}.c"
        source.write_text(
            f"int cudaMalloc(void); int cuInit(int); int {name}(void) {{ return cudaMalloc() + cuInit(0); }}"
        )
        command = ["gcc", "-shared", "-fPIC", "-o", tmp_path / f"{name}.so", source, "-Wl,--no-as-needed", vendor]
        subprocess.run(command, check=True)
        return tmp_path / f"{name}.so"

    files = [compiled("torch_file", "libcudart.so.13"), compiled("cudaOther", "libcudart.so.12")]
    found = expected_libraries(files)
    assert {name: library.file for name, library in found.items()} == {
        "cudart": "libcudart.so.13",
        "cuda": "libcuda.so.1",
        "nvidia-ml": "libnvidia-ml.so.1",
    }
    assert set(found["cudart"].entry_points) == {"cudaMalloc"}
    assert set(found["cuda"].entry_points) == {"cuInit"}


def test_a_name_that_was_looked_at_succeeds_and_a_new_one_says_so():
    seen = {"cublas": {"cublasSgemm_v2"}, "cublas: handles": {"cublasMake"}}
    text = generated_answers("cublas", ["cublasSgemm_v2", "cublasMake", "cublasNew"], seen)
    assert "int cublasMake(void **handle) { *handle = (void *)64; return 0; }" in text
    assert "int cublasSgemm_v2(void) { return 0; }" in text
    assert 'int cublasNew(void) { return em_unseen("libcublas", "cublasNew"); }' in text


def test_names_that_were_looked_at_belong_to_one_library_and_have_no_answer_by_hand():
    seen = seen_entry_points()
    names = [name for group in seen.values() for name in group]
    assert len(names) == len(set(names)) > 300
    by_hand = "".join((driver_folder() / file).read_text() for files in ANSWERS.values() for file in files)
    assert [name for name in names if f" {name}(" in by_hand or f"*{name}(" in by_hand] == []


def test_lines_of_names_are_read_by_heading():
    assert read_seen("# first\n[a]\nx y\nz # last\n[b]\n") == {"a": {"x", "y", "z"}, "b": set()}


def test_symbols_get_the_version_that_torch_expects():
    assert version_script(["", "libcudart.so.13", "libcudart.so.13"]) == "libcudart.so.13 { *; };\n"
    assert version_script(["", ""]) == ""
