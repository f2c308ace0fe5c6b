"""The GPUs on the terminal, with a scripted driver."""

import io
import json
import os
import signal
from dataclasses import replace

import pytest
from scripted import TOTAL_BYTES, UUID, ScriptedNvml

from profiler.analysis.gpu_advice import MOST_LINES, gpu_advice
from profiler.command_line import Interrupted
from profiler.config.options.option import read_options
from profiler.domain.errors import UsageError
from profiler.domain.memory import GIB, Phase
from profiler.domain.runs.readings import GpuProcessState, GpuState, LiveCounters
from profiler.measurement.driver.nvml import GpuProcess, NvmlTrouble
from profiler.measurement.driver.visible import GpuReader, VisibleGpu, VisibleGpus, process_command
from profiler.monitor.command import MonitorOptions
from profiler.monitor.gpus import Machine, show_gpus, styled
from profiler.monitor.main import main
from profiler.rendering.layouts.terminal import TerminalConsole
from profiler.rendering.live.gpu_panel import gpu_panel, gpus_content, plain_lines, sparkline
from profiler.storage.files.live_counters import LIVE_FOLDER, live_folder, process_start, publish, published, withdraw

GPU = VisibleGpu(uuid=UUID, name="NVIDIA H100 80GB HBM3", memory_bytes=TOTAL_BYTES, compute_capability=(9, 0))
OURS = os.getpid()
COUNTERS = LiveCounters(
    pid=OURS,
    started=process_start(OURS),
    gpu_uuid=UUID,
    what="train.py",
    phase=Phase.BACKWARD,
    step=12,
    allocated_bytes=40 * GIB,
    reserved_bytes=59 * GIB,
    alloc_retries=3,
    out_of_memory=0,
)


@pytest.fixture(autouse=True)
def live(tmp_path, monkeypatch):
    monkeypatch.setenv(LIVE_FOLDER, str(tmp_path / "live"))
    return tmp_path / "live"


def nvml(used=75 * GIB):
    listed = (GpuProcess(pid=1, used_bytes=14 * GIB), GpuProcess(pid=OURS, used_bytes=60 * GIB))
    return ScriptedNvml(used_bytes=used, listed=listed)


def states(driver, *counters, commands=None) -> tuple[GpuState, ...]:
    return GpuReader([GPU], driver, command_of=(commands or {1: "other"}.get)).read(counters)


def machine(driver, waits=0):
    """A machine on which the user interrupts the wait number `waits`."""
    left = [waits]

    def wait(_seconds):
        left[0] -= 1
        if left[0] < 0:
            raise Interrupted(signal.SIGINT)

    return Machine(visible=lambda: VisibleGpus(gpus=(GPU,), note=""), nvml=lambda: driver, wait=wait)


def text_of(gpus, **how):
    console = TerminalConsole(width=80, force_terminal=False, record=True, file=io.StringIO())
    panel = gpu_panel(gpus, **how)
    console.print(styled(panel))
    text = console.export_text()
    assert [line.rstrip() for line in text.splitlines()] == list(plain_lines(panel, 80))
    return text


def test_a_gpu_has_all_its_values_and_its_processes(monkeypatch):
    (gpu,) = GpuReader([GPU], nvml(), command_of=lambda pid: f"command {pid}").read([COUNTERS])
    assert (gpu.used_bytes, gpu.free_bytes, gpu.total_bytes) == (75 * GIB, 5 * GIB, TOTAL_BYTES)
    assert (gpu.utilisation_percent, gpu.power_watts, gpu.temperature_celsius) == (40, 300.5, 61)
    assert [(one.pid, one.command, one.counters) for one in gpu.processes] == [
        (OURS, f"command {OURS}", COUNTERS),
        (1, "command 1", None),
    ]
    shown = text_of([gpu])
    for text in (
        "NVIDIA H100 80GB HBM3, compute capability 9.0",
        "75.0 GiB of 80.0 GiB used (94 %), 5.0 GiB free",
        "utilisation 40 %, power 300 W, 61 °C",
        "60.0  command",
        "backward, step 12; 40.0 GiB in tensors, 59.0 GiB reserved;",
        "3 retries, out of memory 0 times",
    ):
        assert text in shown
    assert max(map(len, shown.splitlines())) <= 80


def test_a_profiled_process_that_a_container_hides_is_shown_as_well():
    driver = ScriptedNvml(used_bytes=GIB, listed=(GpuProcess(pid=4711, used_bytes=GIB),))
    (gpu,) = GpuReader([GPU], driver, command_of=lambda _: "").read([COUNTERS])
    assert [(one.pid, one.used_bytes) for one in gpu.processes] == [(4711, GIB), (OURS, None)]
    assert "(not visible here)" in text_of([gpu])


def test_values_that_a_card_does_not_have_are_question_marks_and_asked_for_once():
    driver = nvml()
    driver.broken = dict.fromkeys(("power_watts", "temperature_celsius"), NvmlTrouble.NOT_SUPPORTED)
    reader = GpuReader([GPU], driver, command_of=lambda _: "")
    for _ in range(3):
        (gpu,) = reader.read()
    assert "power ?, ?" in text_of([gpu])
    assert driver.asked.count("power_watts") == 1


def test_a_lost_gpu_does_not_hide_the_others():
    driver = nvml()
    driver.lose()
    (gpu,) = GpuReader([GPU], driver, command_of=lambda _: "").read()
    assert "cannot be read: GPU-1" in text_of([gpu])


def test_names_of_processes_cannot_write_to_the_terminal():
    (gpu,) = GpuReader([GPU], nvml(), command_of=lambda _: "\x1b[2Jevil").read()
    assert "\x1b" not in text_of([gpu])
    assert "\\x1b[2Jevil" in text_of([gpu])


def test_the_command_of_a_process():
    assert "python" in process_command(OURS)
    assert process_command(2**22 + 1) == ""


# ---- advice ----------------------------------------------------------------------------------------------------------


def full(*counters, used=75 * GIB, utilisation=40):
    processes = tuple(
        GpuProcessState(pid=each.pid, command="", used_bytes=60 * GIB, counters=each) for each in counters
    )
    other = GpuProcessState(pid=1, command="other", used_bytes=14 * GIB)
    (gpu,) = GpuReader([GPU], nvml(used), command_of=lambda _: "").read()
    return replace(gpu, processes=(*processes, other), utilisation_percent=utilisation)


def test_up_to_90_percent_there_is_no_advice():
    assert gpu_advice(full(COUNTERS, used=72 * GIB)) == ()
    assert gpu_advice(full(COUNTERS, used=72 * GIB + 1))


def test_the_lines_that_apply_and_no_others():
    assert gpu_advice(full(COUNTERS)) == (
        f"The allocator of train.py (process {OURS}) released its cache and tried again 3 times, which costs time: "
        "the next growth does not fit.",
        "Other processes (1) hold 14.0 GiB: end those that are not needed.",
        f"train.py (process {OURS}) holds 19.0 GiB that no tensor uses: PYTORCH_ALLOC_CONF=expandable_segments:True "
        "keeps less.",
        f"train.py (process {OURS}) is in its backward phase: half of per_device_train_batch_size with twice "
        "gradient_accumulation_steps shrinks activations and logits.",
    )
    calm = replace(COUNTERS, alloc_retries=0, reserved_bytes=41 * GIB, phase=Phase.LOAD)
    assert gpu_advice(replace(full(calm), processes=full(calm).processes[:1])) == ()


def test_failed_allocations_come_first_and_lines_are_few():
    failed = replace(COUNTERS, out_of_memory=2)
    found = gpu_advice(full(failed, replace(failed, pid=7, what="b.py", out_of_memory=1), utilisation=0))
    assert found[0].startswith(f"train.py (process {OURS}) ran out of memory 2 times: python -m profiler.solve")
    assert found[1].startswith("b.py (process 7) ran out of memory once")
    assert ", and no kernel runs" in found[2]
    assert len(found) == MOST_LINES


def test_without_a_profiled_process_the_advice_is_to_profile():
    assert gpu_advice(replace(full(), processes=full().processes[:1]))[-1].startswith("VramCallback or python -m")


# ---- the command -----------------------------------------------------------------------------------------------------


def test_without_a_driver_the_command_ends_with_one_sentence(monkeypatch):
    with pytest.raises(UsageError, match=r"^gpu=none: no driver\. A GPU with NVIDIA's driver is needed"):
        show_gpus(read_options(MonitorOptions, {}), Machine(visible=lambda: VisibleGpus(gpus=(), note="no driver")))


def test_the_exit_code_without_a_gpu_is_2(monkeypatch, capsys):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert main([]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert len(shown.err.splitlines()) == 1


def test_json_has_every_value(capsys, live):
    publish(COUNTERS, live)
    show_gpus(read_options(MonitorOptions, {"format": "json"}), machine(nvml()))
    ((gpu),) = json.loads(capsys.readouterr().out)["gpus"]
    assert (gpu["name"], gpu["compute_capability"], gpu["temperature_celsius"]) == (GPU.name, "9.0", 61)
    assert gpu["processes"][0]["profiled"]["alloc_retries"] == 3
    assert len(gpu["advice"]) == MOST_LINES
    assert gpus_content(()) == []


def test_watching_prints_a_line_of_json_per_reading_until_it_is_interrupted(capsys):
    show_gpus(read_options(MonitorOptions, {"format": "json", "watch": "1s"}), machine(nvml(), waits=2))
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 3
    assert all(json.loads(line)["gpus"] for line in lines)


def test_watching_has_the_memory_so_far(capsys):
    sizes = iter([0, 0, 40 * GIB, 40 * GIB, 80 * GIB, 80 * GIB])
    show_gpus(
        read_options(MonitorOptions, {"watch": "1s"}), machine(ScriptedNvml(used_bytes=lambda: next(sizes)), waits=2)
    )
    assert "memory so far ▁▅█" in capsys.readouterr().out


def test_watching_ends_where_nobody_reads(monkeypatch, capsys):
    asked = nvml()
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as closed:
        monkeypatch.setattr("sys.stdout", closed)
        show_gpus(read_options(MonitorOptions, {"watch": "1s", "format": "json"}), machine(asked, waits=1000))
        monkeypatch.undo()
    assert asked.asked.count("power_watts") <= 2


def test_another_signal_than_that_of_the_user_is_no_normal_end():
    def terminate(_):
        raise Interrupted(signal.SIGTERM)

    with pytest.raises(Interrupted):
        show_gpus(read_options(MonitorOptions, {"watch": "1s"}), replace(machine(nvml()), wait=terminate))


@pytest.mark.parametrize(
    ("written", "seconds"), [("1s", 1.0), ("500ms", 0.5), (2, 2.0), (0.5, 0.5), ("1.5 s", 1.5), ("2m", 120.0)]
)
def test_durations(written, seconds):
    assert read_options(MonitorOptions, {"watch": written}).watch_s == seconds


def test_a_sparkline_shows_the_last_values():
    assert sparkline([0, 0.5, 1, 2]) == "▁▅██"
    assert len(sparkline([0.1] * 100)) == 24


# ---- counters of other processes -------------------------------------------------------------------------------------


def test_counters_are_published_until_they_are_withdrawn(live):
    publish(COUNTERS, live)
    assert published(live) == (COUNTERS,)
    assert live.stat().st_mode & 0o077 == 0
    withdraw(OURS, live)
    assert published(live) == ()


def test_counters_of_a_process_that_has_ended_are_removed(live):
    publish(replace(COUNTERS, started=1), live)
    (live / "7.json").write_text("{")
    assert published(live) == ()
    assert [path.name for path in live.iterdir()] == ["7.json"]


def test_a_folder_that_others_can_write_to_is_not_used(live):
    live.mkdir()
    live.chmod(0o777)
    publish(COUNTERS, live)
    assert not list(live.iterdir())
    assert published(live) == ()


def test_the_folder_is_the_users_own():
    assert live_folder({}).name == f"grpo-vram-{os.getuid()}"
