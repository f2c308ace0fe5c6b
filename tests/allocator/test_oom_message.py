"""torch's out-of-memory message, as in published logs, in all wordings of torch 2."""

import pytest

from profiler.allocator.oom_message import OomMessage, find_oom, read_oom_message
from profiler.domain.memory import GIB, MIB

TODAY = (
    "CUDA out of memory. Tried to allocate 1.90 GiB. GPU 0 has a total capacity of 15.73 GiB of which 1.31 GiB "
    "is free. Including non-PyTorch memory, this process has 14.41 GiB memory in use. Of the allocated memory "
    "13.50 GiB is allocated by PyTorch, and 716.00 MiB is reserved by PyTorch but unallocated. If reserved"
)
OF_TODAY = OomMessage(
    requested_bytes=int(1.9 * GIB),
    requested_text="1.90 GiB",
    total_bytes=int(15.73 * GIB),
    free_bytes=int(1.31 * GIB),
    in_use_bytes=int(14.41 * GIB),
    allocated_bytes=int(13.5 * GIB),
    reserved_bytes=int(13.5 * GIB) + 716 * MIB,
)


@pytest.mark.parametrize(
    ("message", "said"),
    [
        (TODAY, OF_TODAY),
        (TODAY.replace("capacity", "capacty"), OF_TODAY),
        (
            "CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 ...",
            OomMessage(requested_bytes=20 * MIB, requested_text="20.00 MiB"),
        ),
        (
            "CUDA out of memory. Tried to allocate 2.00 GiB (GPU 0; 24.00 GiB total capacity; 20.00 GiB already "
            "allocated; 1.00 GiB free; 22.50 GiB reserved in total by PyTorch) If reserved memory is >> allocated",
            OomMessage(
                requested_bytes=2 * GIB,
                requested_text="2.00 GiB",
                total_bytes=24 * GIB,
                free_bytes=GIB,
                allocated_bytes=20 * GIB,
                reserved_bytes=int(22.5 * GIB),
            ),
        ),
        (
            "CUDA out of memory. Tried to allocate 512.00 MiB. GPU 1 has a total capacity of 80.00 GiB of which 256.00 "
            "MiB is free. Process 4242 has 40.00 GiB memory in use. Process 7 has 512.00 MiB memory in use. Including "
            "non-PyTorch memory, this process has 39.00 GiB memory in use. 40.00 GiB allowed; Of the allocated memory "
            "30.00 GiB is allocated by PyTorch, with 2.00 GiB allocated in private pools (e.g., CUDA Graphs), and 1.00 "
            "GiB is reserved by PyTorch but unallocated.",
            OomMessage(
                requested_bytes=512 * MIB,
                requested_text="512.00 MiB",
                total_bytes=80 * GIB,
                free_bytes=256 * MIB,
                in_use_bytes=39 * GIB,
                processes_bytes=(40 * GIB, 512 * MIB),
                allowed_bytes=40 * GIB,
                private_bytes=2 * GIB,
                allocated_bytes=30 * GIB,
                reserved_bytes=31 * GIB,
            ),
        ),
        ("something else", OomMessage()),
    ],
)
def test_the_sizes_are_read_from_torchs_message(message: str, said: OomMessage) -> None:
    assert read_oom_message(message) == said


def test_the_first_message_of_a_log_counts_with_the_functions_before_it() -> None:
    traceback = (
        "Traceback (most recent call last):\n"
        '  File "train.py", line 3, in <module>\n    trainer.train()\n'
        '  File "/x/trainer.py", line 99, in training_step\n    self.accelerator.backward(loss)\n'
        f"torch.OutOfMemoryError: {TODAY}\n"
    )
    other = traceback.replace("1.90 GiB", "3.00 GiB")
    found = find_oom(f"[rank0]: loss 1.0\n{traceback}\n{other}")
    assert found is not None
    assert (found.message, found.count, found.functions[-1]) == (OF_TODAY, 2, "training_step")
    assert find_oom("CUDA error: out of memory") is None
