"""Files of an archive stay in the folder into which they are extracted, on every Python from 3.11.0 on."""

import io
import tarfile

import pytest

from maintenance.tar_files import extract


def archive_of(*members: tarfile.TarInfo) -> tarfile.TarFile:
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w") as archive:
        for member in members:
            member.size = 2 if member.isfile() else 0
            archive.addfile(member, io.BytesIO(b"hi"))
    content.seek(0)
    return tarfile.open(fileobj=content)


def link(name: str, target: str) -> tarfile.TarInfo:
    found = tarfile.TarInfo(name)
    found.type, found.linkname = tarfile.SYMTYPE, target
    return found


def test_a_file_is_written_to_its_place(tmp_path):
    archive = archive_of(tarfile.TarInfo("a/b.txt"))
    extract(archive, archive.getmembers()[0], tmp_path)
    assert (tmp_path / "a" / "b.txt").read_bytes() == b"hi"


@pytest.mark.parametrize("name", ["../x", "a/../../x", "/x"])
def test_a_name_that_leaves_the_folder_is_refused(name, tmp_path):
    folder = tmp_path / "folder"
    folder.mkdir()
    archive = archive_of(tarfile.TarInfo(name))
    with pytest.raises(tarfile.TarError, match="outside"):
        extract(archive, archive.getmembers()[0], folder)
    assert list(tmp_path.rglob("*")) == [folder]


def test_a_file_behind_a_link_out_of_the_folder_is_refused(tmp_path):
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "out").symlink_to(tmp_path)
    archive = archive_of(tarfile.TarInfo("out/x"))
    with pytest.raises(tarfile.TarError, match="outside"):
        extract(archive, archive.getmembers()[0], folder)


def test_a_link_is_no_file(tmp_path):
    archive = archive_of(link("x", "/etc/passwd"))
    with pytest.raises(tarfile.TarError, match="no file"):
        extract(archive, archive.getmembers()[0], tmp_path)
