"""`VramCallback` on systems other than Linux, as far as taking their parts of Python away shows it."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from other_systems import AS_ON, WITHOUT_ON

from profiler.storage.records.record_folder import MONITORED, RecordFolder

ROOT = Path(__file__).parents[2]

# The libraries are those for Linux: they are imported, once, before its parts are taken away in a process per system.
LIBRARIES = """
import json, os, sys
import accelerate, datasets, filelock, matplotlib.pyplot, pandas, pyarrow.parquet, rich, torch, trl
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel, Trainer, TrainerCallback, TrainingArguments
sizes = {"vocab_size": 32, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1}
model = LlamaForCausalLM(LlamaConfig(**sizes, num_attention_heads=2, num_key_value_heads=2))
"""
PER_SYSTEM = """
pids = {}
for system, program in json.loads(sys.argv[1]).items():
    pids[system] = os.fork()
    if not pids[system]:
        os.chdir(system)
        os.dup2(os.open("errors.txt", os.O_CREAT | os.O_WRONLY), 2)
        exec(program)
        sys.exit()
print(json.dumps({system: os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for system, pid in pids.items()}))
"""
TRAINING = """
from grpo_vram import VramCallback
keys = {"max_steps": 2, "use_cpu": True, "report_to": [], "save_strategy": "no", "disable_tqdm": True}
rows = [{"input_ids": torch.arange(8), "labels": torch.arange(8)}] * 4
callback = VramCallback("runs")
Trainer(model=model, args=TrainingArguments("out", **keys), train_dataset=rows, callbacks=[callback]).train()
"""
OF_FILELOCK = ("O_NONBLOCK", "O_CLOEXEC", "O_NOFOLLOW", "fchmod")
"""What the lock of Linux uses, which another class replaces on Windows."""


SYSTEMS = ("win32", "darwin")


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> tuple[Path, dict[str, int]]:
    """A folder with one folder per system of what a training on it leaves, and the exit code of each."""
    folder, programs = tmp_path_factory.mktemp("systems"), {}
    for system in SYSTEMS:
        (folder / system).mkdir()
        missing = WITHOUT_ON[system] | {"os": [name for name in WITHOUT_ON[system]["os"] if name not in OF_FILELOCK]}
        programs[system] = AS_ON.format(system=system, missing=missing) + TRAINING
    found = subprocess.run(
        [sys.executable, "-c", LIBRARIES + PER_SYSTEM, json.dumps(programs)],
        capture_output=True,
        text=True,
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": "", "HF_HUB_OFFLINE": "1"},
        check=False,
    )
    assert found.returncode == 0, found.stderr
    return folder, json.loads(found.stdout.splitlines()[-1])


@pytest.mark.slow
@pytest.mark.parametrize("system", SYSTEMS)
def test_a_training_is_recorded(trained, system):
    folder, codes = trained
    errors = (folder / system / "errors.txt").read_text()
    assert codes[system] == 0, errors
    assert "has stopped recording" not in errors
    assert (folder / system / "runs" / "report.md").is_file()
    (record,) = RecordFolder(folder / system / "runs", MONITORED).read_all()
    outcome = record.outcome
    assert (outcome.verdict.status, outcome.work.steps_run) == ("ok", 2)
    says = "host_peak_rss_bytes: win32 has no counter of it" in outcome.verdict.unavailable
    assert (outcome.work.host_peak_rss_bytes is None) == says == (system == "win32")
