"""Folders of slots that were killed are removed, and no others."""

import os

from profiler.cluster.remote import remove_abandoned, work_folder


def test_only_old_folders_that_no_slot_holds_are_removed(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    abandoned, young, other = tmp_path / "grpo-vram-slot-a", tmp_path / "grpo-vram-slot-b", tmp_path / "others"
    for folder in (abandoned, young, other):
        (folder / "records").mkdir(parents=True)
    with work_folder() as held:
        for folder in (abandoned, other, held):
            os.utime(folder, (0, 0))
        remove_abandoned()
        assert sorted(tmp_path.iterdir()) == sorted([young, other, held])
    assert not held.exists()
