"""torch's out-of-memory message, as in published logs."""

import pytest

from profiler.domain.units import GIB, MIB
from profiler.worker.oom_message import OomMessage, read_oom_message

NONE = OomMessage(requested_bytes=None, free_bytes=None, allocated_bytes=None, reserved_bytes=None)


@pytest.mark.parametrize(
    ("message", "said"),
    [
        (
            "CUDA out of memory. Tried to allocate 1.90 GiB. GPU 0 has a total capacity of 15.73 GiB of which 1.31 GiB "
            "is free. Including non-PyTorch memory, this process has 14.41 GiB memory in use. Of the allocated memory "
            "13.50 GiB is allocated by PyTorch, and 716.00 MiB is reserved by PyTorch but unallocated. If reserved",
            OomMessage(
                requested_bytes=int(1.9 * GIB),
                free_bytes=int(1.31 * GIB),
                allocated_bytes=int(13.5 * GIB),
                reserved_bytes=int(13.5 * GIB) + 716 * MIB,
            ),
        ),
        (
            "CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 ...",
            OomMessage(requested_bytes=20 * MIB, free_bytes=None, allocated_bytes=None, reserved_bytes=None),
        ),
        ("something else", NONE),
    ],
)
def test_the_sizes_are_read_from_torchs_message(message: str, said: OomMessage) -> None:
    assert read_oom_message(message) == said
