"""The steps of a Dockerfile, and an environment in a temporary folder that has run them without a builder."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from string import Template

_SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_CARRIED = re.compile(r"PIP_.*|SSL_CERT_\w+|REQUESTS_CA_BUNDLE|\w+_proxy", re.IGNORECASE)
"""Variables by which pip reaches its index."""

_INSIDE = re.compile(r"(?<![\w./])/(?=(?:opt|work|etc)\b)")
"""The slash of absolute paths that the steps make."""


@dataclass(frozen=True)
class Step:
    """An instruction and its text, continued lines joined."""

    instruction: str
    text: str


def steps_of(dockerfile: str) -> tuple[Step, ...]:
    """Return the steps, without comments."""
    lines = [line for line in dockerfile.splitlines() if line.strip() and not line.startswith("#")]
    joined = re.sub(r"\\\n\s*", "", "\n".join(lines)).splitlines()
    return tuple(Step(*line.split(None, 1)) for line in joined)


def arguments(steps: Sequence[Step]) -> dict[str, str]:
    """Return the arguments with their defaults."""
    return dict(step.text.split("=", 1) for step in steps if step.instruction == "ARG")


class CleanEnvironment:
    """A folder in place of the root of the image, and the variables that a command gets there.

    Args:
        source: The build context.
        root: An empty folder.
        values: Arguments that differ from their defaults.
    """

    def __init__(self, source: Path, root: Path, values: Mapping[str, str]) -> None:
        self._source, self._root, self._values = source, root, values
        (root / "etc" / "profile.d").mkdir(parents=True)
        self.folder = root
        carried = {name: value for name, value in os.environ.items() if _CARRIED.fullmatch(name)}
        self.environment = {**carried, "PATH": _SYSTEM_PATH, "HOME": str(root), "LANG": "C.UTF-8"}

    def run(self, step: Step) -> None:
        """Run one step; FROM and CMD have nothing to do."""
        text = _INSIDE.sub(f"{self._root}/", step.text)
        if step.instruction == "ARG":
            name, default = text.split("=", 1)
            self.environment[name] = self._values.get(name, default)
        elif step.instruction == "ENV":
            for word in text.split():
                name, value = word.split("=", 1)
                self.environment[name] = Template(value).substitute(self.environment)
        elif step.instruction == "WORKDIR":
            self.folder = Path(text)
            self.folder.mkdir(parents=True, exist_ok=True)
        elif step.instruction == "COPY":
            self._copy(*text.split())
        elif step.instruction == "RUN":
            self._run(text)
        elif step.instruction not in ("FROM", "CMD"):
            sys.exit(f"{step.instruction} is unknown here.")

    def _copy(self, *words: str) -> None:
        *names, target = words
        for name in names:
            place = self.folder / target / (name if target.endswith("/") else "")
            if (self._source / name).is_dir():
                shutil.copytree(self._source / name, place, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy(self._source / name, place)

    def _run(self, text: str) -> None:
        if found := re.search(r"apt-get install ([^&]*)", text):
            if shutil.which("apt-get") is None:
                print("Packages of the system are not looked up: there is no apt-get.")
                return
            text = f"apt-get install --simulate {found[1]} > packages.txt"
        print(f"+ {text}", flush=True)
        done = subprocess.run(["sh", "-c", text], env=self.environment, cwd=self.folder, check=False)
        if done.returncode:
            sys.exit(f"The step ended with {done.returncode}.")
