"""The notebook that derives two estimates runs, with its own assertions, and defines nothing."""

from pathlib import Path

import pytest

NOTEBOOK = Path(__file__).parents[2] / "notebooks" / "where_the_memory_goes.ipynb"


@pytest.mark.slow
def test_the_derivation_runs(tmp_path, monkeypatch):
    nbclient = pytest.importorskip("nbclient")
    import nbformat

    # So that the kernel writes no files to the home folder of the user.
    for name in ("JUPYTER_RUNTIME_DIR", "IPYTHONDIR", "JUPYTER_DATA_DIR"):
        monkeypatch.setenv(name, str(tmp_path / name))
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    nbclient.NotebookClient(notebook, timeout=120, kernel_name="python3").execute()
    outputs = [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]

    assert sum("image/png" in output.get("data", {}) for output in outputs) == 2
    printed = "".join(output.get("text", "") for output in outputs)
    assert "7,615,616,512 parameters x 2 B: 14.19 GiB" in printed
    assert "40,370,176 values" in printed


def test_it_defines_nothing_and_keeps_no_output():
    nbformat = pytest.importorskip("nbformat")
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]

    assert not any(word in cell.source for cell in code for word in ("def ", "class ", "lambda"))
    assert all(cell.outputs == [] for cell in code)
