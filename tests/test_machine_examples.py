"""The examples for many machines: their form, their commands, and the environment that they install."""

import os
import re
import shlex
import sys
import tomllib
from pathlib import Path

import jsonschema
import pytest
import yaml

from profiler.config.options.run_options import RUN_KEYS, RunOptions, read_run_options
from profiler.config.options.value_grammar import read_path
from profiler.domain.machines.engines import Address
from profiler.domain.machines.extras import Extra
from profiler.domain.trials.trial import SPEC_KEYS
from profiler.sweep.command import read_command

sys.path.insert(0, str(Path(__file__).parent / "stress"))
from dockerfile_steps import CleanEnvironment, arguments, steps_of

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "examples" / "machines"
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
REQUIRED = PYPROJECT["project"]["requires-python"]
FILES = sorted(path.name for path in FOLDER.iterdir())
SHELL_VALUES = {"$BUCKET": "my-bucket", "$HOME": "/home/me", "${CHOICE:-backend=cuda}": "backend=cuda"}

CRD = "KUBERAY_CRD"
"""Environment variable: KubeRay's ray.io_rayjobs.yaml (helm-chart/kuberay-operator/crds in its repository)."""


def commands(name):
    """The sweeps that a file starts, as words after the module."""
    text = (FOLDER / name).read_text().replace("\\\n#", " ")
    for variable, value in SHELL_VALUES.items():
        text = text.replace(variable, value)
    if name == "kubernetes.yaml":
        container = yaml.safe_load(text)["spec"]["template"]["spec"]["containers"][0]
        return [container["command"][3:]]
    if name == "rayjob.yaml":
        return [shlex.split(yaml.safe_load(text)["spec"]["entrypoint"])[3:]]
    return [shlex.split(line) for line in re.findall(r"profiler\.sweep (\+grid=.*)", text)]


def test_every_file_is_known():
    assert FILES == ["Dockerfile", "kubernetes.yaml", "rayjob.yaml", "sky.yaml", "slurm.sbatch"]


@pytest.mark.parametrize("name", FILES)
def test_each_starts_a_sweep_of_a_known_grid_with_a_shared_store(name):
    (words,) = commands(name)
    command = read_command(words)
    assert command.faults == ()
    assert (ROOT / "sweeps" / "grid" / f"{command.grids[0]}.yaml").is_file()
    assert set(command.axes) <= set(SPEC_KEYS)
    given = dict(setting.split("=", 1) for setting in command.settings)
    assert set(given) <= set(RUN_KEYS)
    defaults = {**vars(RunOptions()), "slurm_time": 60, "results_dir": read_path(given["results_dir"])}
    assert isinstance(read_run_options(defaults).results_dir, Address)


@pytest.mark.parametrize(
    ("name", "wanted"),
    [("Dockerfile", r"^ARG EXTRAS=(.*)$"), ("sky.yaml", r"'\.\[(.*)\]'")],
    ids=["Dockerfile", "sky.yaml"],
)
def test_what_is_installed_are_extras_with_the_pinned_versions(name, wanted):
    text = (FOLDER / name).read_text()
    assert re.search(r"pip install .*--constraint (constraints|pinned).txt", text)
    assert "constraints.txt > pinned.txt" in text or "constraint pinned.txt" not in text
    extras = re.search(wanted, text, re.MULTILINE)[1].split(",")
    assert set(extras) <= {str(extra) for extra in Extra}
    assert {"measure", "s3"} <= set(extras)
    assert "gcs" not in extras, "gcsfs has no release for the pinned fsspec"


def test_what_the_image_copies_is_what_the_wheel_is_made_of():
    copied = re.findall(r"^COPY (.*) \S+$", (FOLDER / "Dockerfile").read_text(), re.MULTILINE)
    words = " ".join(copied).split()
    assert all((ROOT / word).exists() for word in words)
    wheel = PYPROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]
    built_from = {*wheel["packages"], *wheel["force-include"]}
    assert {"pyproject.toml", "constraints.txt", "README.md", "LICENSE"} | built_from == set(words)


def test_the_build_context_is_what_the_image_copies():
    copied = re.findall(r"^COPY (.*) \S+$", (FOLDER / "Dockerfile").read_text(), re.MULTILINE)
    first, *lines, last = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if line[0] != "#"]
    assert (first, last) == ("*", "**/__pycache__")
    assert sorted(lines) == sorted(f"!{word}" for word in " ".join(copied).split())


def test_the_steps_of_the_image_run_without_a_builder(tmp_path):
    steps = steps_of((FOLDER / "Dockerfile").read_text())
    assert arguments(steps)["EXTRAS"] == "measure,s3,ray,slurm"
    assert [step.instruction for step in steps if step.text.startswith(("apt-get", "python3"))] == ["RUN", "RUN"]
    made = CleanEnvironment(ROOT, tmp_path, {"EXTRAS": "simulate"})
    for step in steps:
        if not step.text.startswith(("apt-get", "python3")):
            made.run(step)
    assert made.environment["EXTRAS"] == "simulate"
    assert made.environment["PATH"].split(":")[0] == f"{tmp_path}/opt/venv/bin"
    assert made.environment["HOME"] == str(made.folder) == f"{tmp_path}/work"
    assert (tmp_path / "opt" / "source" / "profiler" / "__init__.py").is_file()
    assert (tmp_path / "opt" / "source" / "sweeps" / "grid" / "lora_vs_full.yaml").is_file()
    assert (tmp_path / "etc" / "profile.d" / "venv.sh").read_text() == f"PATH={tmp_path}/opt/venv/bin:$PATH\n"


def test_the_ray_job_has_workers_with_gpus_and_a_head_without_trials():
    spec = yaml.safe_load((FOLDER / "rayjob.yaml").read_text())["spec"]
    assert spec["shutdownAfterJobFinishes"] is True
    cluster = spec["rayClusterSpec"]
    assert cluster["headGroupSpec"]["rayStartParams"] == {"num-cpus": "0"}
    (workers,) = cluster["workerGroupSpecs"]
    (container,) = workers["template"]["spec"]["containers"]
    assert container["resources"]["limits"]["nvidia.com/gpu"] == 1
    assert "engine=ray" in spec["entrypoint"]


@pytest.mark.skipif(CRD not in os.environ, reason=f"{CRD} does not name KubeRay's definition of a RayJob")
def test_the_ray_job_is_what_kuberay_defines():
    definition = yaml.safe_load(Path(os.environ[CRD]).read_text())
    (version,) = (found for found in definition["spec"]["versions"] if found["name"] == "v1")
    schema = closed(version["schema"]["openAPIV3Schema"])
    job = yaml.safe_load((FOLDER / "rayjob.yaml").read_text())
    jsonschema.validate(job, schema)
    job["spec"]["entrypoint_"] = "x"
    with pytest.raises(jsonschema.ValidationError, match="entrypoint_"):
        jsonschema.validate(job, schema)


def test_the_pods_are_what_kubernetes_defines():
    checker = pytest.importorskip("kubernetes_validate", reason="kubernetes-validate is not installed")
    job = yaml.safe_load((FOLDER / "kubernetes.yaml").read_text())
    cluster = yaml.safe_load((FOLDER / "rayjob.yaml").read_text())["spec"]["rayClusterSpec"]
    groups = [cluster["headGroupSpec"], *cluster["workerGroupSpecs"]]
    pods = [{"apiVersion": "v1", "kind": "Pod", **group["template"]} for group in groups]
    for found in (job, *pods):
        checker.validate(found, checker.latest_version(), strict=True)
    job["spec"]["completion"] = 8
    with pytest.raises(checker.ValidationError, match="completion"):
        checker.validate(job, checker.latest_version(), strict=True)


def closed(schema):
    """The schema, with unknown fields refused as Kubernetes refuses them, and its own kind of union resolved."""
    if isinstance(schema, list):
        return [closed(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    if schema.get("x-kubernetes-int-or-string"):
        return {"type": ["integer", "string"]}
    found = {key: closed(value) for key, value in schema.items()}
    is_object = isinstance(schema.get("properties"), dict) and schema.get("type") == "object"
    if is_object and "x-kubernetes-preserve-unknown-fields" not in schema:
        found.setdefault("additionalProperties", not schema["properties"])
    return found


def test_skypilot_reads_the_task():
    sky = pytest.importorskip("sky", reason="SkyPilot is not installed (pip install skypilot)")
    task = sky.Task.from_yaml(str(FOLDER / "sky.yaml"))
    (resources,) = task.resources
    assert (task.num_nodes, resources.use_spot, dict(resources.accelerators)) == (8, True, {"H100": 1})
    task.validate_run()
    task.validate_name()


def test_the_task_of_skypilot_has_its_fields():
    task = yaml.safe_load((FOLDER / "sky.yaml").read_text())
    chosen = re.search(r"uv venv .*--python (\S+)", task["setup"])[1]
    assert f">={chosen}" == REQUIRED, "SkyPilot's images have an older Python"
    assert set(task) == {"name", "num_nodes", "resources", "workdir", "envs", "setup", "run"}
    assert set(task["resources"]) == {"accelerators", "use_spot", "disk_size"}


def test_the_job_array_asks_for_a_gpu_and_is_requeued():
    options = re.findall(r"^#SBATCH --(\S+)", (FOLDER / "slurm.sbatch").read_text(), re.MULTILINE)
    assert {"array=1-8", "gpus-per-node=1", "requeue", "time=01:00:00"} <= set(options)
