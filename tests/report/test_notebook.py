"""The notebook runs on any results folder, and defines nothing itself."""

from pathlib import Path

import builders
import pytest

NOTEBOOK = Path(__file__).parents[2] / "notebooks" / "compare.ipynb"


@pytest.mark.slow
def test_the_notebook_runs(tmp_path, monkeypatch):
    nbclient = pytest.importorskip("nbclient")
    import nbformat

    # The kernel writes nothing into the home folder.
    for name in ("JUPYTER_RUNTIME_DIR", "IPYTHONDIR", "JUPYTER_DATA_DIR"):
        monkeypatch.setenv(name, str(tmp_path / name))
    folder = builders.write_folder(tmp_path / "made_up", builders.records(builders.lora_vs_full_specs()))
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    (parameters,) = [cell for cell in notebook.cells if "parameters" in cell.metadata.get("tags", [])]
    parameters.source = f"from pathlib import Path\n\nfolder = Path({str(folder)!r})"
    nbclient.NotebookClient(notebook, timeout=120, kernel_name="python3").execute()
    outputs = [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
    # comparison, categories, savings, estimate
    assert sum("image/png" in output.get("data", {}) for output in outputs) == 4
    assert sum("text/html" in output.get("data", {}) for output in outputs) == 1


def test_the_notebook_defines_nothing_and_keeps_no_output():
    nbformat = pytest.importorskip("nbformat")
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert not any(word in cell.source for cell in code for word in ("def ", "class ", "lambda"))
    assert all(cell.outputs == [] for cell in code)
