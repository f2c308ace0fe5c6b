"""Files of a tar archive, extracted into a folder that they cannot leave.

`TarFile.extract` has a filter for this from Python 3.11.4 on; Debian 12 has 3.11.2.
"""

import tarfile
from pathlib import Path

from profiler.storage.files.atomic import write_atomically


def extract(archive: tarfile.TarFile, member: tarfile.TarInfo, folder: Path) -> None:
    """Write a file of an archive to its place under `folder`, with today's time and the usual permissions.

    Raises:
        tarfile.TarError: It is no file, or its name leads out of the folder.
        StorageError: It cannot be written.
    """
    path = folder / member.name
    if not path.resolve().is_relative_to(folder.resolve()):
        raise tarfile.TarError(f"'{member.name}' is outside of the folder")
    content = archive.extractfile(member) if member.isfile() else None
    if content is None:
        raise tarfile.TarError(f"'{member.name}' is no file")
    write_atomically(path, content.read())
