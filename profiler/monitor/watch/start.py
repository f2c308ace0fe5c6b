"""When a recorded run began, and its name."""

import os
from dataclasses import dataclass
from datetime import UTC, datetime


@dataclass(frozen=True, kw_only=True)
class Start:
    """When a run began, and its name."""

    run_id: str
    started_at: str


def start_now() -> Start:
    """Return the start of a run of this process."""
    now = datetime.now(UTC)
    return Start(
        run_id=f"{now:%Y%m%dT%H%M%S}{now.microsecond // 1000:03}-{os.getpid()}",
        started_at=now.isoformat(timespec="seconds"),
    )
