"""Nothing but the restricted reader of snapshots unpickles, and no code of others is run."""

import ast
import os
import pickle
from pathlib import Path

import pytest
import yaml

from maintenance.campaign.recorded_history import recorded_history_of
from profiler.config.foreign_text import ForeignTextError, parse_yaml
from profiler.domain.errors import UsageError
from profiler.domain.trials.trial import Tuning

ROOT = Path(__file__).parents[1]
FILES = sorted(path for folder in ("profiler", "maintenance", "scripts") for path in (ROOT / folder).rglob("*.py"))

UNPICKLERS = {"pickle", "_pickle", "cPickle", "cloudpickle", "dill", "joblib", "jsonpickle", "marshal", "shelve"}
"""Modules that can run code of what they read."""

ALLOWED = {
    "profiler/storage/foreign/recorded_snapshot.py": {"pickle.Unpickler"},
    "profiler/storage/files/trial_files.py": {"pickle.dumps"},
    "profiler/config/foreign_text.py": {"yaml.load"},
}
"""The restricted reader, which replaces what an unpickler imports; the writer of our snapshots; a safe YAML loader."""

DANGEROUS_ATTRIBUTES = {
    "torch.load",
    "np.load",
    "numpy.load",
    "pd.read_pickle",
    "pandas.read_pickle",
    "yaml.load",
    "yaml.unsafe_load",
    "yaml.full_load",
    "os.system",
    "os.popen",
}
DANGEROUS_NAMES = {"eval", "exec", "compile", "__import__"}
DANGEROUS_KEYWORDS = {"trust_remote_code", "allow_pickle", "shell"}


def used(source: str) -> set[str]:
    """Return what a module uses of the above, by its dotted name."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {f"{each.asname} is {each.name}" for each in node.names if each.asname and _unpickles(each.name)}
        elif isinstance(node, ast.ImportFrom) and _unpickles(node.module or ""):
            found |= {f"{node.module}.{each.name}" for each in node.names}
        elif isinstance(node, ast.Attribute):
            name = ast.unparse(node)
            if _unpickles(name) or name in DANGEROUS_ATTRIBUTES:
                found.add(name)
        elif isinstance(node, ast.Call):
            if isinstance(node.func, ast.Name) and node.func.id in DANGEROUS_NAMES:
                found.add(node.func.id)
            found |= {word.arg for word in node.keywords if word.arg in DANGEROUS_KEYWORDS}
    return found


def _unpickles(name: str) -> bool:
    return name.partition(".")[0] in UNPICKLERS


def test_nothing_else_unpickles_or_runs_code_of_others():
    assert len(FILES) > 300
    found = {str(path.relative_to(ROOT)): used(path.read_text()) for path in FILES}
    assert {name: names for name, names in found.items() if names} == ALLOWED


@pytest.mark.parametrize(
    "source",
    [
        "import pickle\npickle.loads(b'')",
        "import pickle as p\np.loads(b'')",
        "from pickle import loads",
        "from pickle import Unpickler as Reader",
        "import joblib\njoblib.load(path)",
        "torch.load(path)",
        "np.load(path, allow_pickle=True)",
        "reader(path, allow_pickle=True)",
        "pd.read_pickle(path)",
        "yaml.load(text)",
        "from_pretrained(name, trust_remote_code=True)",
        "subprocess.run(line, shell=True)",
        "eval(text)",
    ],
)
def test_the_check_finds_what_it_looks_for(source):
    assert used(source)


class Malicious:
    """An object whose pickle makes a folder when it is loaded."""

    def __init__(self, witness: Path) -> None:
        self.witness = witness

    def __reduce__(self):
        return (os.mkdir, (str(self.witness),))


def test_a_pickle_in_place_of_a_recorded_history_is_refused_and_not_run(tmp_path):
    """The folder of a campaign travels with an archive or a checkout."""
    witness = tmp_path / "was run"
    content = pickle.dumps(Malicious(witness))
    path = tmp_path / "allocator_truth" / "full.json.gz"
    path.parent.mkdir()
    for name in ("full.json.gz", "full.pickle", "full.pkl", "full.pickle.gz"):
        path.with_name(name).write_bytes(content)
    with pytest.raises(UsageError) as refused:
        recorded_history_of(Tuning.FULL, folder=tmp_path, record=lambda spec: pytest.fail("nothing was to be recorded"))
    assert str(refused.value).startswith(f"history={path}: is not a recorded history as gzipped JSON (")
    assert len(str(refused.value).splitlines()) == 1
    assert not witness.exists()
    pickle.loads(content)
    assert witness.exists()


def test_yaml_that_would_call_something_is_refused_and_not_run(tmp_path):
    witness = tmp_path / "was run"
    text = f"!!python/object/apply:os.mkdir [{str(witness)!r}]"
    with pytest.raises(ForeignTextError):
        parse_yaml(text)
    assert not witness.exists()
    yaml.unsafe_load(text)
    assert witness.exists()
