"""Shell completion of `grpo-vram`, in a real shell."""

import os
import shutil
import subprocess
import sys

import pytest

BASH = shutil.which("bash")

_PROGRAM = """\
#!/bin/sh
exec {python} -c 'import sys; from profiler.console import main; sys.exit(main())' "$@"
"""

_COMPLETION = """
eval "$(grpo-vram -sc install=bash)"
complete -p grpo-vram
COMP_LINE={line!r}
COMP_WORDS=($COMP_LINE)
COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1))
hydra_bash_completion 2>/dev/null
printf '%s\\n' "${{COMPREPLY[@]}}"
"""


def completed(folder, line):
    """The words that bash offers, after its rule for the command."""
    program = folder / "grpo-vram"
    program.write_text(_PROGRAM.format(python=sys.executable))
    program.chmod(0o755)
    path = os.pathsep.join([str(folder), os.environ["PATH"]])
    environment = {**os.environ, "PATH": path, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [BASH, "-c", _COMPLETION.format(line=line)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    rule, *words = done.stdout.splitlines()
    assert "-F hydra_bash_completion grpo-vram" in rule, done.stderr
    return words


@pytest.mark.skipif(BASH is None, reason="there is no bash")
@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("grpo-vram sweep +grid=lora", ["+grid=lora_vs_full"]),
        ("grpo-vram sweep +grid=lora_vs_full num_gen", ["num_generations="]),
        ("grpo-vram report +grid=lora", [""]),
    ],
)
def test_bash_completes_grids_and_keys(tmp_path, line, words):
    assert completed(tmp_path, line) == words
