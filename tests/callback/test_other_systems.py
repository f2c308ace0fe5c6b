"""`VramCallback` on systems other than Linux, as far as taking their parts of Python away shows it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from other_systems import AS_ON, WITHOUT_ON

from profiler.storage.records.record_folder import MONITORED, RecordFolder

ROOT = Path(__file__).parents[2]

# The libraries are those for Linux: they are imported before its parts are taken away.
LIBRARIES = """
import sys
import accelerate, datasets, filelock, matplotlib.pyplot, pandas, pyarrow.parquet, rich, torch, trl
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel, Trainer, TrainerCallback, TrainingArguments
sizes = {"vocab_size": 32, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1}
model = LlamaForCausalLM(LlamaConfig(**sizes, num_attention_heads=2, num_key_value_heads=2))
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


@pytest.mark.slow
@pytest.mark.parametrize("system", ["win32", "darwin"])
def test_a_training_is_recorded(tmp_path, system):
    missing = WITHOUT_ON[system] | {"os": [name for name in WITHOUT_ON[system]["os"] if name not in OF_FILELOCK]}
    program = LIBRARIES + AS_ON.format(system=system, missing=missing) + TRAINING
    found = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": "", "HF_HUB_OFFLINE": "1"},
        check=False,
    )
    assert found.returncode == 0, found.stderr
    assert "has stopped recording" not in found.stderr
    assert (tmp_path / "runs" / "report.md").is_file()
    (record,) = RecordFolder(tmp_path / "runs", MONITORED).read_all()
    outcome = record.outcome
    assert (outcome.verdict.status, outcome.work.steps_run) == ("ok", 2)
    says = "host_peak_rss_bytes: win32 has no counter of it" in outcome.verdict.unavailable
    assert (outcome.work.host_peak_rss_bytes is None) == says == (system == "win32")
