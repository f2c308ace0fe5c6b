"""Sweeps on a real Ray cluster on this machine; they need the extra ray (`make engines`)."""

import itertools
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("ray", reason="the extra ray is not installed; `make engines` installs it")

sys.path.insert(0, str(Path(__file__).parents[1] / "stress"))

import ray_driver
from ray_gpus import CARD, UUIDS
from ray_nodes import HERE, ROOT, RayNodes, free_port

from profiler.cluster.ray_cluster import reach_ray
from profiler.domain.errors import EXIT_USAGE, UsageError

LIMIT_S = 200.0
WORDS = ["+grid=lora_vs_full", "model=qwen2.5-0.5b", "tuning=full", "optim=adamw_torch", "gradient_checkpointing=false"]


@pytest.fixture(scope="module")
def nodes():
    with RayNodes() as found:
        found.add(num_gpus=2, resources=f'{{"accelerator_type:{CARD.name}": 1}}')
        yield found


@pytest.fixture
def drive(nodes, tmp_path):
    """Start a driver; its results are in a folder of this test."""

    def start(*words, address=nodes.address, **variables):
        environment = {**nodes.environment, **variables}
        command = [sys.executable, str(HERE / "ray_driver.py"), *WORDS, f"results_dir={tmp_path / 'results'}"]
        return subprocess.Popen(
            [*command, "engine=ray", f"ray_address={address}", *words],
            env=environment,
            cwd=nodes.folder,  # Ray lets actors import from the folder of the driver first
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    return start


def ended(process):
    out, err = process.communicate(timeout=LIMIT_S)
    return process.returncode, out, err


def records(folder):
    return list((folder / "results" / ray_driver.RECORDS).glob("*.json"))


def notes(folder):
    return [line.split() for line in (folder / "results" / ray_driver.NOTES).read_text().splitlines()]


def wait_for(happened):
    until_s = time.monotonic() + LIMIT_S
    while not happened():
        assert time.monotonic() < until_s
        time.sleep(0.1)


def test_measured_trials_have_a_gpu_each(nodes, drive, tmp_path):
    on_gpus = {ray_driver.ON_SCRIPTED_GPUS: "1"}
    words = ("backend=cuda", f"gpu={CARD.name}", "seed=range(1,9)", "prune=false")
    code, out, err = ended(drive(*words, **on_gpus))
    assert code == 0, out + err
    runs = notes(tmp_path)
    assert len(runs) == len(records(tmp_path)) == 8
    assert {gpu for *_, gpu in runs} == set(UUIDS)
    for uuid in UUIDS:
        times = sorted((float(began), float(end)) for _, _, began, end, gpu in runs if gpu == uuid)
        assert all(one[1] <= other[0] for one, other in itertools.pairwise(times))
    assert ended(drive(*words, **on_gpus))[0] == 0
    assert len(notes(tmp_path)) == 8  # stored under the same names
    assert nodes.left(within_s=60.0) == []


def test_a_node_with_another_version_is_refused_before_the_first_trial(nodes, drive, tmp_path):
    shutil.copytree(ROOT / "profiler", tmp_path / "other" / "profiler", ignore=shutil.ignore_patterns("__pycache__"))
    init = tmp_path / "other" / "profiler" / "__init__.py"
    init.write_text(init.read_text().replace("__version__ = ", '__version__ = "9.9.9"  # '))
    node = nodes.add(path=tmp_path / "other")
    try:
        code, _, err = ended(drive("backend=simulated"))
    finally:
        nodes.kill(node)
    assert code == EXIT_USAGE, err
    assert f"engine=ray: node {socket.gethostname()} has grpo-vram 9.9.9, and " in err
    assert not records(tmp_path)


def test_a_python_that_a_node_lacks_is_refused_before_the_first_trial(nodes, drive, tmp_path):
    code, _, err = ended(drive("backend=simulated", "python=/no/such/python"))
    assert code == EXIT_USAGE, err
    assert "python=/no/such/python: does not run (No such file or directory) on node " in err
    assert not records(tmp_path)


def test_an_interrupted_driver_ends_its_slots_and_continues(nodes, drive, tmp_path):
    driver = drive("backend=simulated", "seed=range(1,21)")
    wait_for(lambda: len(records(tmp_path)) >= 3)
    driver.send_signal(signal.SIGTERM)
    code, _, err = ended(driver)
    assert code == 128 + signal.SIGTERM, err
    assert nodes.left(within_s=60.0) == []
    before = len(records(tmp_path))
    assert ended(drive("backend=simulated", "seed=range(1,21)"))[0] == 0
    assert before < len(records(tmp_path)) == 20
    assert {word for word, *_ in notes(tmp_path)} == {ray_driver.RAN}


def test_a_cluster_of_its_own_ends_with_its_driver(nodes, drive, tmp_path):
    before = {process.pid for process in nodes.marked()}
    driver = drive("backend=simulated", "seed=range(1,41)", "jobs=2", address="local")
    wait_for(lambda: len(records(tmp_path)) >= 3)
    driver.kill()
    driver.communicate()

    def is_gone():
        return {process.pid for process in nodes.marked()} <= before

    wait_for(is_gone)


def test_a_client_of_the_head_needs_no_node_here(nodes, drive, tmp_path):
    code, out, err = ended(
        drive("backend=simulated", "seed=range(1,5)", address=f"ray://127.0.0.1:{nodes.client_port}")
    )
    assert code == 0, out + err
    assert len(records(tmp_path)) == 4


@pytest.mark.parametrize(
    "address", ["127.0.0.1:{free}", "ray://127.0.0.1:{free}", "ray://[", "no.such.host.invalid:6379"]
)
def test_an_address_without_a_cluster_is_one_sentence(address):
    began_s = time.monotonic()
    with pytest.raises(UsageError, match=r"^ray_address=.*: no Ray cluster answers \(.*\)\. Start one with") as caught:
        reach_ray(address.format(free=free_port()), jobs=None)
    assert time.monotonic() - began_s < 10.0
    assert len(caught.value.faults) == 1


def test_a_port_of_something_else_is_one_sentence():
    began_s = time.monotonic()
    subprocess.run([sys.executable, "-c", "import ray"], check=True)
    importing_s = time.monotonic() - began_s
    with socket.create_server(("127.0.0.1", 0)) as other:
        began_s = time.monotonic()
        with pytest.raises(UsageError, match=r"no Ray cluster answers \(it did not answer within 8 s\)"):
            reach_ray(f"127.0.0.1:{other.getsockname()[1]}", jobs=None)
        assert time.monotonic() - began_s < 9.0 + 2 * importing_s


def test_usage_statistics_are_off():
    assert os.environ["RAY_USAGE_STATS_ENABLED"] == "0"
