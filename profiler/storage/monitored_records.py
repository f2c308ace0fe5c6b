"""Records of monitored runs."""

from pathlib import Path

from profiler.domain.monitored import MonitoredRun
from profiler.storage.record_folder import MOST_BYTES, RecordFolder
from profiler.storage.versioned import RecordFormat

FORMAT = RecordFormat(
    kind=MonitoredRun, version_key="monitored_schema_version", version=1, oldest=1, most_bytes=MOST_BYTES
)


class MonitoredStore(RecordFolder[MonitoredRun]):
    """Records of monitored runs, in `<folder>/records/`."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, FORMAT, what="a monitored run")
