"""The image of examples/machines/Dockerfile: built, then used without a network by a user who is not root.

`python tests/stress/image.py [builder=NAME] [NAME=VALUE...] [-- OPTION...]` builds with docker, podman or buildah, the
first that works here. builder=none, and a machine without any of them, runs the steps of the Dockerfile in a temporary
folder instead, with an environment that is as clean; packages of the system are then looked up, not installed. Names in
upper case are arguments of the Dockerfile (`BASE=debian:13 EXTRAS=simulate,s3`). What follows `--` goes to the builder.
"""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from dockerfile_steps import CleanEnvironment, arguments, steps_of

ROOT = Path(__file__).parents[2]
DOCKERFILE = ROOT / "examples" / "machines" / "Dockerfile"
REFERENCE = ROOT / "results" / "reference" / "lora_vs_full"
TAG = "localhost/grpo-vram-tested"
USER = "1000:1000"
BUILDERS = ("docker", "podman", "buildah")

_SAME_PEAKS = """
import sys, pandas
key = ["model", "tuning", "optim", "gradient_checkpointing"]
found, kept = (pandas.read_parquet(f"{path}/runs.parquet").set_index(key).sort_index() for path in sys.argv[1:])
assert len(found) == len(kept) == 25, (len(found), len(kept))
for column in ("status", "peak_allocated_bytes", "peak_reserved_bytes"):
    assert found[column].equals(kept[column]), found[column].compare(kept[column])
"""
_ONLY_LOOPBACK = "import socket; names = {name for _, name in socket.if_nameindex()}; assert names <= {'lo'}, names"
_HEADERS = """
folder=$(python -c 'import sysconfig; print(sysconfig.get_paths()["include"])')
echo '#include <Python.h>' > headers.c && gcc -fsyntax-only -I"$folder" headers.c
"""

Shell = Callable[[str], "subprocess.CompletedProcess[str]"]
"""Run a line of `sh` where the image is used."""


def checks(reference: str, extras: Sequence[str]) -> dict[str, str]:
    """Return lines of `sh`, by what they show."""
    found = {
        "no network": f'python -c "{_ONLY_LOOPBACK}"',
        "help": "python -m profiler.sweep --help | grep -q profiler.sweep",
        "estimate": "python -m profiler.estimate model=qwen2.5-7b tuning=lora gpu=h100-80gb | grep -q '17.2 GiB'",
        "advise": "python -m profiler.advise model=qwen2.5-14b tuning=full gpu=4090 | grep -q load_in_4bit",
        "a sweep with a shared store": "python -m profiler.sweep +grid=lora_vs_full backend=simulated "
        "results_dir=file://$PWD/store",
        "its peaks are the kept ones": f"python -c '{_SAME_PEAKS}' store/lora_vs_full {reference}",
        "its report": "python -m profiler.report file://$PWD/store/lora_vs_full | grep -q qwen2.5-14b",
        "packages that agree": "python -m pip check",
    }
    if "measure" in extras:
        found["what Triton compiles with"] = _HEADERS
    if "ray" in extras:
        found["a trial with Ray"] = (
            "python -m profiler.sweep +grid=lora_vs_full model=qwen2.5-0.5b shard=1/5 backend=simulated "
            "engine=ray ray_address=local"
        )
    return found


@contextmanager
def image(builder: str, values: Mapping[str, str], options: Sequence[str]) -> Iterator[tuple[Shell, str]]:
    """Build the image, and yield how to run a line in it, and where the kept results are there."""
    build = "bud" if builder == "buildah" else "build"
    settings = [word for name, value in values.items() for word in ("--build-arg", f"{name}={value}")]
    call([builder, build, "-f", str(DOCKERFILE), "-t", TAG, *settings, *options, str(ROOT)])
    mounted = ["--volume", f"{REFERENCE}:/reference:ro"]
    if builder == "buildah":
        name = call([builder, "from", TAG], capture=True).strip()
        # With chroot isolation, buildah leaves the network as it is.
        outside = without_network() if os.getuid() == 0 else []
        run = [*outside, builder, "run", "--network", "none", "--user", USER, *mounted, name, "--"]
    else:
        name = call(
            [builder, "run", "--detach", "--network", "none", "--user", USER, *mounted, TAG, "sleep", "infinity"],
            capture=True,
        ).strip()
        run = [builder, "exec", name]
    try:
        yield lambda line: shell([*run, "bash", "-lc", f"cd /work && {line}"]), "/reference"
        print(f"size: {call([*run, 'du', '-shx', '/'], capture=True).split()[0]}")
    finally:
        call([builder, "rm", *(() if builder == "buildah" else ("--force",)), name], capture=True)
        call([builder, "rmi", TAG], capture=True)


@contextmanager
def clean_environment(values: Mapping[str, str]) -> Iterator[tuple[Shell, str]]:
    """Run the steps of the Dockerfile in a temporary folder, and yield how to run a line there."""
    with tempfile.TemporaryDirectory(prefix="image-") as folder:
        made = CleanEnvironment(ROOT, Path(folder), values)
        for step in steps_of(DOCKERFILE.read_text()):
            made.run(step)
        isolated = without_network()
        yield lambda line: shell([*isolated, "bash", "-c", line], env=made.environment, cwd=made.folder), str(REFERENCE)


def without_network() -> list[str]:
    """Return the words that start a command with no other network than its own loopback."""
    as_root = () if os.getuid() == 0 else ("--map-root-user",)
    return ["unshare", *as_root, "--net", "bash", "-c", 'ip link set lo up; exec "$@"', "bash"]


def builder_here() -> str | None:
    """Return the first builder that works; docker's client alone does not."""
    for name in BUILDERS:
        try:
            done = subprocess.run([name, "info"], capture_output=True, check=False)
        except OSError:
            continue
        if done.returncode == 0:
            return name
    return None


def call(words: Sequence[str], *, capture: bool = False) -> str:
    """Run a command, which must not fail."""
    done = subprocess.run(words, stdout=subprocess.PIPE if capture else None, text=True, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(words)} ended with {done.returncode}.")
    return done.stdout or ""


def shell(words: Sequence[str], **options: object) -> "subprocess.CompletedProcess[str]":
    """Run a command that may fail."""
    return subprocess.run(words, capture_output=True, text=True, check=False, **options)


def run_checks(run: Shell, reference: str, extras: Sequence[str]) -> int:
    """Run each check, print what it ended with, and return how many failed."""
    lines = checks(reference, extras)
    failed = 0
    for name, line in lines.items():
        began_s = time.monotonic()
        done = run(line)
        failed += done.returncode != 0
        print(f"{name}: {'failed' if done.returncode else 'ok'} ({time.monotonic() - began_s:.0f} s)", flush=True)
        if done.returncode:
            print(f"  {line}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}")
    print(f"{len(lines) - failed} passed, {failed} failed")
    return failed


def main(words: Sequence[str]) -> int:
    """Build, check, and return the exit code."""
    settings, options = (words[: words.index("--")], words[words.index("--") + 1 :]) if "--" in words else (words, [])
    values = dict(word.split("=", 1) for word in settings)
    builder = values.pop("builder", None) or builder_here() or "none"
    extras = (arguments(steps_of(DOCKERFILE.read_text())) | values)["EXTRAS"].split(",")
    print(f"builder: {builder}", flush=True)
    made = clean_environment(values) if builder == "none" else image(builder, values, options)
    with made as (run, reference):
        return min(run_checks(run, reference, extras), 1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
