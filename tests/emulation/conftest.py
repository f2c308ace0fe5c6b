"""Fixtures of the emulation's tests."""

import shutil

import pytest
from emulation.building import build_driver


@pytest.fixture(scope="session")
def driver(made_once):
    """The folder of a small emulated driver."""
    if missing := [name for name in ("gcc", "g++", "nm", "readelf") if shutil.which(name) is None]:
        pytest.skip(f"{', '.join(missing)} not found")
    return made_once("driver", build_driver)
