"""Fixtures of the emulation's tests."""

import shutil

import pytest
from emulation.building import build_driver


@pytest.fixture(scope="session")
def driver(tmp_path_factory):
    """The folder of a small emulated driver."""
    if missing := [name for name in ("gcc", "g++", "nm", "readelf") if shutil.which(name) is None]:
        pytest.skip(f"{', '.join(missing)} not found")
    return build_driver(tmp_path_factory.mktemp("driver"))
