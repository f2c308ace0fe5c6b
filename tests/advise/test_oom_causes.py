"""Torch's out-of-memory messages in each wording, and what is concluded from each by its sums.

The numbers are made up so that they fit a card; the wordings are those of torch 1.1 to 2.13 and of the launchers.
"""

import json
import textwrap

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from profiler.advise.main import main
from profiler.advise.oom.cause import Cause, explained
from profiler.allocator.oom_message import OomMessage, find_oom, read_oom_message
from profiler.domain.errors import EXIT_INTERNAL, EXIT_OK, EXIT_USAGE
from profiler.domain.memory import GIB

_TODAY = (
    "CUDA out of memory. Tried to allocate {asked}. GPU 0 has a total capacity of {total} of which {free} is free. "
    "{processes}Of the allocated memory {used} is allocated by PyTorch, and {unused} is reserved by PyTorch but "
    "unallocated. If reserved but unallocated memory is large try setting PYTORCH_ALLOC_CONF=expandable_segments:True"
)
_EARLIER = (
    "CUDA out of memory. Tried to allocate {asked} (GPU 0; {total} total capacity; {used} already allocated; {free} "
    "free; {reserved} reserved in total by PyTorch) If reserved memory is >> allocated memory try max_split_size_mb"
)
_SELF = "Including non-PyTorch memory, this process has {} memory in use. "
_NOT_AVAILABLE = _SELF.format("17179869184.00 GiB")


def _others(*sizes: str) -> str:
    return "".join(f"Process {1000 + number} has {size} memory in use. " for number, size in enumerate(sizes))


def _today(asked: str, total: str, free: str, processes: str, used: str, unused: str) -> str:
    return _TODAY.format(asked=asked, total=total, free=free, processes=processes, used=used, unused=unused)


MESSAGES = {
    "own, need": (
        _today("4.00 GiB", "79.10 GiB", "1.10 GiB", _SELF.format("77.90 GiB"), "76.00 GiB", "1.20 GiB"),
        Cause.NEED,
        "1.70 GiB were missing",
    ),
    "own, fragments": (
        _today("2.00 GiB", "79.10 GiB", "1.10 GiB", _SELF.format("77.90 GiB"), "73.00 GiB", "4.20 GiB"),
        Cause.FRAGMENTS,
        "5.30 GiB (1.10 GiB free and 4.20 GiB cached but unused)",
    ),
    "own and one other": (
        _today(
            "2.00 GiB",
            "23.64 GiB",
            "0.10 GiB",
            _others("9.00 GiB") + _SELF.format("14.50 GiB"),
            "13.90 GiB",
            "100.00 MiB",
        ),
        Cause.OTHERS,
        "1 other process had 9.00 GiB of the card.",
    ),
    "a container: the only process is this one": (
        _today("1.54 GiB", "79.10 GiB", "1.43 GiB", _others("77.66 GiB"), "75.80 GiB", "60.00 MiB"),
        Cause.NEED,
        "were missing for 1.54 GiB",
    ),
    "a container, and fragments": (
        _today("1.54 GiB", "79.10 GiB", "1.43 GiB", _others("77.66 GiB"), "73.89 GiB", "1.97 GiB"),
        Cause.FRAGMENTS,
        "Fragmentation: 3.40 GiB",
    ),
    "a container: this process and a larger one": (
        _today("2.00 GiB", "79.10 GiB", "0.50 GiB", _others("60.00 GiB", "18.60 GiB"), "17.80 GiB", "200.00 MiB"),
        Cause.OTHERS,
        "1 other process had 60.00 GiB of the card (by their sizes",
    ),
    "a container: eight ranks on one card": (
        _today("1.00 GiB", "79.10 GiB", "0.70 GiB", _others(*["9.80 GiB"] * 8), "9.10 GiB", "150.00 MiB"),
        Cause.OTHERS,
        "7 other processes had 68.60 GiB of the card (by their sizes",
    ),
    "eight ranks on one card that hold enough in pieces": (
        _today(
            "20.00 MiB",
            "79.10 GiB",
            "10.00 MiB",
            _others(*["9.80 GiB"] * 7) + _SELF.format("10.49 GiB"),
            "9.80 GiB",
            "200.00 MiB",
        ),
        Cause.OTHERS,
        "7 other processes had 68.60 GiB of the card.",
    ),
    "eight ranks on one card, none listed": (
        _today("1.00 GiB", "79.10 GiB", "0.70 GiB", "", "9.10 GiB", "150.00 MiB"),
        Cause.OTHERS,
        "At least 66.15 GiB are probably of other processes, which the message does not list",
    ),
    "eight ranks on one card, torch 2.0": (
        _EARLIER.format(asked="1.00 GiB", total="79.10 GiB", used="9.10 GiB", free="0.70 GiB", reserved="9.25 GiB"),
        Cause.OTHERS,
        "At least 66.15 GiB are probably of other processes",
    ),
    "another process only, this one is not listed": (
        _today("8.00 GiB", "79.10 GiB", "7.00 GiB", _others("40.00 GiB"), "31.00 GiB", "300.00 MiB"),
        Cause.OTHERS,
        "1 other process had 40.00 GiB of the card (by their sizes",
    ),
    "a desktop, and fragments": (
        _today(
            "2.00 GiB",
            "23.64 GiB",
            "1.00 GiB",
            _others("600.00 MiB") + _SELF.format("22.00 GiB"),
            "17.50 GiB",
            "4.00 GiB",
        ),
        Cause.FRAGMENTS,
        "Also, 1 other process had 0.59 GiB",
    ),
    "nothing listed, and little is unexplained": (
        _today("2.00 GiB", "23.64 GiB", "0.10 GiB", "", "22.60 GiB", "100.00 MiB"),
        Cause.NEED,
        "1.80 GiB were missing for 2.00 GiB.",
    ),
    "nothing listed, and what is unexplained may decide": (
        _today("2.00 GiB", "23.64 GiB", "0.10 GiB", "", "20.60 GiB", "100.00 MiB"),
        Cause.NEED,
        "2.84 GiB of the card are neither free nor in PyTorch's cache of this program",
    ),
    "WSL": (
        _today("5.91 GiB", "23.99 GiB", "3.39 GiB", _NOT_AVAILABLE, "13.67 GiB", "5.27 GiB"),
        Cause.FRAGMENTS,
        "8.66 GiB",
    ),
    "a sandbox whose driver says 0 bytes": (
        _today("1.88 GiB", "21.96 GiB", "1.29 GiB", _SELF.format("0 bytes"), "19.02 GiB", "0.30 GiB"),
        Cause.NEED,
        "0.29 GiB were missing",
    ),
    "memory moved to the host by Windows": (
        _today("314.00 MiB", "10.00 GiB", "0 bytes", "", "24.10 GiB", "14.44 MiB"),
        Cause.NEED,
        "0.29 GiB were missing",
    ),
    "a limit of the program": (
        _today(
            "996.00 MiB",
            "44.43 GiB",
            "9.06 GiB",
            f"{_SELF.format('17.81 GiB')}17.69 GiB allowed; ",
            "17.44 GiB",
            "59.88 MiB",
        ),
        Cause.LIMIT,
        "the program may take 17.69 GiB of the card, of which PyTorch had 17.50 GiB",
    ),
    "a limit that is not reached": (
        _today("4.00 GiB", "79.10 GiB", "1.10 GiB", "79.00 GiB allowed; ", "70.00 GiB", "1.20 GiB"),
        Cause.OTHERS,
        "are probably of other processes",
    ),
    "free, and refused": (
        _today("214.00 MiB", "22.00 GiB", "19.50 GiB", _NOT_AVAILABLE, "1.32 GiB", "1.93 MiB"),
        Cause.LIMIT,
        "The message does not tell these apart.",
    ),
    "free, but for the driver's own": (
        _today("1.16 GiB", "7.75 GiB", "1.17 GiB", _SELF.format("6.50 GiB"), "6.10 GiB", "18.97 MiB"),
        Cause.NEED,
        "1.17 GiB were free, which the driver needs for more than 1.16 GiB",
    ),
    "torch 1.1": (
        "CUDA out of memory. Tried to allocate 2.00 GiB (GPU 0; 11.17 GiB total capacity; 8.00 GiB already allocated; "
        "0.50 GiB free; 2.20 GiB cached)",
        Cause.FRAGMENTS,
        "2.70 GiB",
    ),
    "torch 1.2": (
        "CUDA out of memory. Tried to allocate 22.79 GiB (GPU 0; 31.75 GiB total capacity; 28.66 GiB already "
        "allocated; 1.93 GiB free; 21.30 MiB cached; 0 bytes inactive)",
        Cause.NEED,
        "20.84 GiB were missing",
    ),
    "HIP": (
        _today("4.70 GiB", "63.98 GiB", "3.06 GiB", "", "60.00 GiB", "29.10 MiB").replace("CUDA", "HIP"),
        Cause.NEED,
        "1.61 GiB were missing",
    ),
    "cut behind the free memory": (
        "CUDA out of memory. Tried to allocate 4.00 GiB. GPU 0 has a total capacity of 79.10 GiB of which 2.72 GiB is "
        "free. Including non-PyTorch memory, this pro",
        Cause.UNKNOWN,
        "The message does not say how much memory was cached but unused.",
    ),
    "cut behind the request": (
        "CUDA out of memory. Tried to allocate 4.00 GiB. GPU 0 ...",
        Cause.UNKNOWN,
        "The message does not say how much memory was free or cached but unused.",
    ),
    "a size that is none": (
        _today("2.0.0 GiB", "79.10 GiB", "2.72 GiB", "", "70.00 GiB", "1.00 GiB"),
        Cause.UNKNOWN,
        "The message does not say how much was requested.",
    ),
    "more than there is": (
        "CUDA out of memory. Tried to allocate more than 1EB memory.",
        Cause.UNKNOWN,
        "more than 2**60 bytes",
    ),
}


@pytest.mark.parametrize(("message", "cause", "said"), MESSAGES.values(), ids=MESSAGES)
def test_each_message_has_its_cause(message, cause, said):
    found = explained(read_oom_message(message))
    assert (found.cause, said in found.sentence) == (cause, True), found.sentence


@pytest.mark.parametrize("message", [each[0] for each in MESSAGES.values()], ids=MESSAGES)
def test_a_log_alone_is_answered(message, tmp_path, capsys):
    """Without a model the message is explained; with one, the same cause is found."""
    file = tmp_path / "train.log"
    file.write_text(f"torch.OutOfMemoryError: {message}\n")
    assert main([f"oom={file}", "format=json"]) == EXIT_OK
    alone = json.loads(capsys.readouterr().out)
    assert alone["advice"] is None
    words = ["model=qwen2.5-0.5b", "gpu=h100-80gb", "confirm=false", "format=json"]
    assert main([f"oom={file}", *words]) == EXIT_OK
    assert json.loads(capsys.readouterr().out)["oom"]["cause"] == alone["oom"]["cause"]


def test_only_others_are_to_be_ended(tmp_path, capsys):
    """Its own memory, printed as that of a process, is never what a user is told to end."""
    for message, cause, _ in MESSAGES.values():
        file = tmp_path / "train.log"
        file.write_text(message)
        assert main([f"oom={file}"]) == EXIT_OK
        said = " ".join(capsys.readouterr().out.split())
        assert ("end the other processes" in said) is (cause is Cause.OTHERS), message


def test_what_is_printed_as_free_is_never_called_unknown(tmp_path, capsys):
    for message, _, _ in MESSAGES.values():
        file = tmp_path / "train.log"
        file.write_text(message)
        assert main([f"oom={file}"]) == EXIT_OK
        said = " ".join(capsys.readouterr().out.split())
        if "GiB free" in said.partition(".  ")[0]:
            assert "does not say how much memory was free" not in said


@pytest.mark.parametrize(
    ("name", "end", "line"),
    [
        ("own, fragments", "", "export PYTORCH_ALLOC_CONF=expandable_segments:True"),
        ("own, fragments", "CUDA_", "export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"),
        ("own, fragments", None, "export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"),
        (
            "torch 1.1",
            None,
            "export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True, after an update to torch 2.1 or later",
        ),
    ],
)
def test_the_variable_is_the_one_that_this_torch_reads(name, end, line, tmp_path, capsys):
    message = MESSAGES[name][0]
    message = message.partition(" If reserved")[0] if end is None else message.replace("H_ALLOC", f"H_{end}ALLOC")
    file = tmp_path / "train.log"
    file.write_text(message)
    assert main([f"oom={file}"]) == EXIT_OK
    assert f"What to change: {line} Name the job" in " ".join(capsys.readouterr().out.split())


MESSAGE = MESSAGES["own, need"][0]
READ = read_oom_message(MESSAGE)
TRACEBACK = (
    "Traceback (most recent call last):",
    '  File "/x/train.py", line 3, in <module>',
    "    trainer.train()",
    '  File "/x/trainer.py", line 99, in training_step',
    "    self.accelerator.backward(loss)",
    f"torch.OutOfMemoryError: {MESSAGE}",
)
OTHER_RANK = ("Traceback (most recent call last):", '  File "/x/vllm.py", line 7, in generate', "    return 1")


@pytest.mark.parametrize(
    ("own", "other"),
    [
        ("", None),
        ("[rank0]: ", "[rank1]: "),
        ("(WorkerDict pid=17, ip=10.0.0.1) ", "(WorkerDict pid=18, ip=10.0.0.1) "),
        ("\x1b[36m(main_task pid=17)\x1b[0m ", "\x1b[36m(main_task pid=18)\x1b[0m "),
        (
            "(VllmWorker rank=0 pid=17) ERROR 03-13 09:00:43 [core.py:330] ",
            "(VllmWorker rank=1 pid=18) ERROR 03-13 09:00:43 [core.py:330] ",
        ),
        ("0: ", "1: "),
        ("[1,0]<stderr>:", "[1,1]<stderr>:"),
    ],
)
def test_prefixes_of_launchers(own, other):
    """The lines of another rank between its own do not change the traceback of the first."""
    lines = [f"{own}{line}" for line in TRACEBACK]
    if other is not None:
        lines[3:3] = [f"{other}{line}" for line in OTHER_RANK]
        lines[-1:-1] = [f"{other}{line}" for line in OTHER_RANK]
    found = find_oom("\n".join(lines))
    assert found is not None
    assert (found.message, found.functions) == (READ, ("training_step",))


@pytest.mark.parametrize(
    "prefix", ["", "(WorkerDict pid=17) ", "[rank0]:     ", "│ ", "ERROR 03-13 09:00:43 [core.py:330] "]
)
@pytest.mark.parametrize("width", [40, 80, 120])
@pytest.mark.parametrize("at_words", [True, False])
def test_a_message_broken_over_lines(prefix, width, at_words):
    def broken(text: str) -> list[str]:
        if at_words:
            return textwrap.wrap(text, width, break_on_hyphens=False)
        return [text[start : start + width] for start in range(0, len(text), width)]

    start = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 4.00 GiB."
    assert MESSAGE.startswith(start.removeprefix("torch.OutOfMemoryError: "))
    lines = [start, *broken(MESSAGE.removeprefix(start.removeprefix("torch.OutOfMemoryError: ")).strip())]
    if not at_words:  # torch's own line ends with a space there
        lines[0] += " "
    found = find_oom("\n".join(f"{prefix}{line}" for line in [*lines, "[rank1]: next line of 7.00 GiB is free"]))
    assert found is not None
    assert found.message == READ


def test_tracebacks_of_notebooks_and_rich():
    notebook = (
        "OutOfMemoryError   Traceback (most recent call last)\n"
        "File /usr/lib/trainer.py:99, in Trainer.training_step(self, x)\n---> 99 loss\n"
        f"OutOfMemoryError: {MESSAGE}"
    )
    rich = (
        "╭─ Traceback (most recent call last) ─╮\n│ /x/trainer.py:99 in training_step │\n"
        f"╰──╯\nOutOfMemoryError: {MESSAGE}"
    )
    for log in (notebook, rich):
        found = find_oom(log)
        assert found is not None
        assert (found.functions, found.message) == (("training_step",), READ)


_SIZES = st.builds(
    lambda number, unit: f"{number} {unit}",
    st.one_of(
        st.floats(min_value=0, max_value=2e5).map(lambda size: f"{size:.2f}"),
        st.sampled_from(["0", "17179869184.00", "2.0.0", "9" * 400, "nan", "1e9", "-1.00", "", "٣.00", "1,024.00"]),
    ),
    st.sampled_from(["GiB", "MiB", "KiB", "bytes"]),
)


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(
    sizes=st.tuples(_SIZES, _SIZES, _SIZES, _SIZES, _SIZES),
    processes=st.lists(_SIZES, max_size=4),
    own=st.one_of(st.none(), _SIZES),
    allowed=st.one_of(st.none(), _SIZES),
    form=st.sampled_from([_TODAY, _EARLIER]),
    end=st.one_of(st.none(), st.integers(30, 600)),
    job=st.sampled_from([(), ("model=tiny",)]),
)
def test_no_message_ends_the_command_with_an_internal_error(
    tmp_path_factory, sizes, processes, own, allowed, form, end, job
):
    asked, total, free, used, unused = sizes
    whose = _others(*processes) + (_SELF.format(own) if own else "") + (f"{allowed} allowed; " if allowed else "")
    words = {"asked": asked, "total": total, "free": free, "used": used, "unused": unused, "reserved": unused}
    file = tmp_path_factory.getbasetemp() / "fuzzed.log"
    file.write_text(form.format(processes=whose, **words)[:end])
    code = main([f"oom={file}", "confirm=false", "format=json", *job])
    assert code in (EXIT_OK, EXIT_USAGE)
    assert code != EXIT_INTERNAL


@given(st.text(alphabet="CUDA out of memory. Tried to allocate 0123456789GiBMiB\n();:", max_size=300))
def test_no_text_breaks_the_reader(text):
    find_oom(f"CUDA out of memory. Tried to allocate {text}")
    read_oom_message(text)


@given(
    reserved=st.integers(0, 70),
    context=st.integers(0, 2),
    others=st.lists(st.integers(1, 20), max_size=3),
    asked=st.integers(1, 8),
)
def test_others_lie_within_the_bounds_however_torch_names_the_processes(reserved, context, others, asked):
    """A card made up of known shares: what is concluded contains them, whether torch knows its own number or not."""
    own, free = reserved + context, 1
    total = own + sum(others) + free
    for listed, named in (
        ((*others,), own),
        ((own, *others), None),
        ((*others, own), None),
        ((*others,), None),
        ((), None),
        ((), own),
    ):
        message = OomMessage(
            requested_bytes=asked * GIB,
            requested_text=f"{asked}.00 GiB",
            total_bytes=total * GIB,
            free_bytes=free * GIB,
            in_use_bytes=named * GIB if named else None,
            processes_bytes=tuple(size * GIB for size in listed if size),
            allocated_bytes=reserved * GIB,
            reserved_bytes=reserved * GIB,
        )
        found = explained(message)
        if found.others is not None:
            least, most = found.others.least_others_bytes, found.others.most_others_bytes
            assert least <= most
            assert least <= sum(others) * GIB <= most + 2 * GIB * (not named), (listed, named)
        if not others:
            assert found.cause is not Cause.OTHERS
