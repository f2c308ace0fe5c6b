"""Which GPUs are visible, by a scripted driver."""

from types import SimpleNamespace

import pytest

from profiler.measurement.driver.visible import TEST_ON_EMULATED_DRIVER, visible_gpus


class ScriptedError(Exception):
    pass


def driver(*uuids, broken=False, capability=(9, 0), version=b"580.65.06"):
    def init():
        if broken:
            raise ScriptedError("driver not loaded")

    def compute_capability(handle):
        if capability is None:
            raise ScriptedError("not supported")
        return capability

    return SimpleNamespace(
        NVMLError=ScriptedError,
        nvmlInit=init,
        nvmlShutdown=lambda: None,
        nvmlSystemGetDriverVersion=lambda: version,
        nvmlDeviceGetCount=lambda: len(uuids),
        nvmlDeviceGetHandleByIndex=lambda index: uuids[index],
        nvmlDeviceGetUUID=lambda handle: handle.encode(),
        nvmlDeviceGetName=lambda handle: "NVIDIA H100",
        nvmlDeviceGetCudaComputeCapability=compute_capability,
        nvmlDeviceGetMemoryInfo=lambda handle: SimpleNamespace(total=80 * 2**30),
    )


def seen(variable, *uuids):
    environment = {} if variable is None else {"CUDA_VISIBLE_DEVICES": variable}
    return [gpu.uuid for gpu in visible_gpus(environment=environment, nvml=driver(*uuids)).gpus]


@pytest.mark.parametrize(
    ("variable", "expected"),
    [
        (None, ["GPU-a", "GPU-b"]),
        ("1", ["GPU-b"]),
        ("1, 0", ["GPU-b", "GPU-a"]),
        ("GPU-b", ["GPU-b"]),
        ("0,7,1", ["GPU-a"]),
        ("-1", []),
        ("", []),
    ],
)
def test_cuda_visible_devices(variable, expected):
    assert seen(variable, "GPU-a", "GPU-b") == expected


def test_what_a_gpu_is():
    visible = visible_gpus(environment={}, nvml=driver("GPU-a"))
    (gpu,) = visible.gpus
    assert visible.driver_version == "580.65.06"
    assert (gpu.name, gpu.memory_bytes) == ("NVIDIA H100", 80 * 2**30)
    assert gpu.compute_capability == (9, 0)


def test_a_driver_that_does_not_name_the_capability():
    (gpu,) = visible_gpus(environment={}, nvml=driver("GPU-a", capability=None)).gpus
    assert gpu.compute_capability is None


def test_gpus_of_an_emulated_driver_are_no_gpus_except_in_tests():
    emulated = driver("GPU-a", version=b"580.0.emulated")
    visible = visible_gpus(environment={}, nvml=emulated)
    assert (visible.gpus, visible.note) == ((), "the driver is an emulated one, on which nothing can be measured")
    assert visible_gpus(environment={TEST_ON_EMULATED_DRIVER: "1"}, nvml=emulated).gpus


@pytest.mark.parametrize(
    ("nvml", "environment", "note"),
    [
        (driver(broken=True), {}, "does not answer (driver not loaded)"),
        (driver(), {}, "lists no GPU"),
        (driver("GPU-a"), {"CUDA_VISIBLE_DEVICES": ""}, "CUDA_VISIBLE_DEVICES='' hides every GPU"),
    ],
)
def test_why_there_is_none(nvml, environment, note):
    visible = visible_gpus(environment=environment, nvml=nvml)
    assert not visible.gpus
    assert note in visible.note
