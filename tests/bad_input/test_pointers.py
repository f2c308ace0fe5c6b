"""A file of git-LFS that was not fetched is named as such by every command that reads files of others."""

from importlib import import_module

import pytest

POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a2146\nsize 12345\n"
CONFIG = (
    '{"model_type": "llama", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "vocab_size": 512, '
    '"num_attention_heads": 4}'
)

COMMANDS = (
    ("profiler.replay.main", ["f.pickle"]),
    ("profiler.replay.main", ["f.pickle.gz"]),
    ("profiler.replay.main", ["folder"]),
    ("profiler.estimate.main", ["config=f.yaml", "model=tiny"]),
    ("profiler.estimate.main", ["config=f.json", "model=tiny"]),
    ("profiler.estimate.main", ["config=f.toml", "model=tiny"]),
    ("profiler.estimate.main", ["config=f.py", "model=tiny"]),
    ("profiler.estimate.main", ["config=f.sh", "model=tiny"]),
    ("profiler.estimate.main", ["model=folder"]),
    ("profiler.estimate.main", ["model=folder/config.json"]),
    ("profiler.estimate.main", ["model=tiny", "prices=f.csv"]),
    ("profiler.solve.main", ["max_completion_length", "config=f.yaml"]),
    ("profiler.advise.main", ["oom=f.log"]),
    ("profiler.advise.main", ["config=f.yaml", "gpu=t4-16gb"]),
    ("profiler.report.main", ["folder"]),
    ("profiler.report.main", ["folder", "folder2"]),
    ("profiler.run.main", ["f.py"]),
    ("profiler.sweep.main", ["+grid=f", "--config-dir", "grids", "dry_run=true"]),
    ("profiler.sweep.main", ["+grid=lora_vs_full", "dataset=f.csv", "backend=simulated", "dry_run=true"]),
    ("profiler.sweep.main", ["+grid=lora_vs_full", "dataset=folder", "backend=simulated", "dry_run=true"]),
    (
        "profiler.sweep.main",
        ["+grid=lora_vs_full", "model=cloned", "weights=pretrained", "backend=cpu", "dry_run=true"],
    ),
)


@pytest.fixture
def pointers(tmp_path, monkeypatch):
    for name in ("folder", "folder2", "grids/grid", "cloned"):
        (tmp_path / name).mkdir(parents=True)
    for name in (
        *("f.pickle", "f.pickle.gz", "f.yaml", "f.json", "f.toml", "f.py", "f.sh", "f.csv", "f.log"),
        *("folder/a.pickle", "folder/config.json", "folder/runs.parquet", "folder2/runs.parquet", "grids/grid/f.yaml"),
        "cloned/model.safetensors",
    ):
        (tmp_path / name).write_text(POINTER)
    (tmp_path / "cloned" / "config.json").write_text(CONFIG)
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(("module", "words"), COMMANDS, ids=lambda value: str(value))
@pytest.mark.usefixtures("pointers")
def test_every_reader_names_a_pointer(module, words, capsys):
    code = import_module(module).main(words)
    said = "".join(capsys.readouterr())
    assert code == 2, said
    assert "it is a pointer of git-LFS, not the file itself; run `git lfs pull`" in said
