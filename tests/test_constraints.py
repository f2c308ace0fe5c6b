"""Every requirement of the environments that the Makefile makes has a pin, so that they can be made again."""

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def name_of(requirement):
    return re.match(r"[\w.-]+", requirement)[0].lower().replace("_", "-")


PINNED = {name_of(line) for line in (ROOT / "constraints.txt").read_text().splitlines() if "==" in line}


@pytest.mark.parametrize("extra", ["simulate", "measure", "emulate", "s3", "ray", "slurm", "dev"])
def test_what_an_extra_requires_is_pinned(extra):
    required = {name_of(each) for each in (*PROJECT["dependencies"], *PROJECT["optional-dependencies"][extra])}
    assert required - {PROJECT["name"]} <= PINNED
