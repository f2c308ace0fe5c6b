"""What the page asks Python: a command with its words, in a folder with the files that were dropped."""

import contextlib
import io
import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path

FOLDER = Path("/job")


def run(words: str, files: Mapping[str, bytes] | None = None) -> str:
    """Run a command and return its exit code, output and messages, as JSON.

    Args:
        words: The words after `grpo-vram`, as a JSON list.
        files: Bytes by name, which are in the working folder while the command runs.
    """
    from profiler.console import main

    os.chdir("/")
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir(parents=True)
    os.chdir(FOLDER)
    for name, content in (files or {}).items():
        Path(Path(name).name).write_bytes(bytes(content))
    out, err = io.StringIO(), io.StringIO()
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = main(json.loads(words))
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else 1
    return json.dumps({"code": code, "out": out.getvalue(), "err": err.getvalue()})
