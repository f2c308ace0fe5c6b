"""Records of the runs of a script."""

from pathlib import Path

from profiler.domain.script import ScriptRecord
from profiler.storage.record_folder import MOST_BYTES, RecordFolder
from profiler.storage.versioned import RecordFormat

FORMAT = RecordFormat(
    kind=ScriptRecord, version_key="script_schema_version", version=2, oldest=1, most_bytes=MOST_BYTES
)


class ScriptStore(RecordFolder[ScriptRecord]):
    """Records of the runs of one script, in `<folder>/records/`."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, FORMAT, what="a script")
