"""Records of monitored runs."""

from pathlib import Path

from profiler.domain.monitored import MonitoredRun
from profiler.storage.record_folder import RecordFolder, RecordFormat

_FORMAT = RecordFormat(
    kind=MonitoredRun, version_key="monitored_schema_version", version=1, oldest=1, what="a monitored run"
)


class MonitoredStore(RecordFolder[MonitoredRun]):
    """Records of monitored runs, in `<folder>/records/`."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, _FORMAT)
