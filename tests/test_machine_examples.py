"""The examples for many machines: their form, their commands, and the environment that they install."""

import re
import shlex
from pathlib import Path

import pytest
import yaml

from profiler.config.run_options import RUN_KEYS, RunOptions, read_run_options
from profiler.domain.address import Address
from profiler.domain.extras import Extra
from profiler.domain.trial import SPEC_KEYS
from profiler.sweep.command import read_command

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "examples" / "machines"
FILES = sorted(path.name for path in FOLDER.iterdir())
SHELL_VALUES = {"$BUCKET": "my-bucket", "$HOME": "/home/me"}


def commands(name):
    """The sweeps that a file starts, as words after the module."""
    text = (FOLDER / name).read_text().replace("\\\n#", " ")
    for variable, value in SHELL_VALUES.items():
        text = text.replace(variable, value)
    if name == "kubernetes.yaml":
        container = yaml.safe_load(text)["spec"]["template"]["spec"]["containers"][0]
        return [container["command"][3:]]
    return [shlex.split(line) for line in re.findall(r"profiler\.sweep (\+grid=.*)", text)]


def test_every_file_is_known():
    assert FILES == ["Dockerfile", "kubernetes.yaml", "sky.yaml", "slurm.sbatch"]


@pytest.mark.parametrize("name", FILES)
def test_each_starts_a_sweep_of_a_known_grid_with_a_shared_store(name):
    (words,) = commands(name)
    command = read_command(words)
    assert command.faults == ()
    assert (ROOT / "sweeps" / "grid" / f"{command.grids[0]}.yaml").is_file()
    assert set(command.axes) <= set(SPEC_KEYS)
    given = dict(setting.split("=", 1) for setting in command.settings)
    assert set(given) <= set(RUN_KEYS)
    defaults = {**vars(RunOptions()), "slurm_time": 60, "results_dir": given["results_dir"]}
    assert isinstance(read_run_options(defaults).results_dir, Address)


@pytest.mark.parametrize("name", ["Dockerfile", "sky.yaml"])
def test_what_is_installed_are_extras_with_the_pinned_versions(name):
    line = next(line for line in (FOLDER / name).read_text().splitlines() if "pip install" in line)
    assert "--constraint constraints.txt" in line
    extras = re.search(r"'\.\[(.*)\]'", line)[1].split(",")
    assert set(extras) <= {str(extra) for extra in Extra}
    assert {"measure", "s3"} <= set(extras)


def test_the_task_of_skypilot_has_its_fields():
    task = yaml.safe_load((FOLDER / "sky.yaml").read_text())
    assert set(task) == {"name", "num_nodes", "resources", "workdir", "envs", "setup", "run"}
    assert set(task["resources"]) == {"accelerators", "use_spot", "disk_size"}


def test_the_job_array_asks_for_a_gpu_and_is_requeued():
    options = re.findall(r"^#SBATCH --(\S+)", (FOLDER / "slurm.sbatch").read_text(), re.MULTILINE)
    assert {"array=1-8", "gpus-per-node=1", "requeue", "time=01:00:00"} <= set(options)
