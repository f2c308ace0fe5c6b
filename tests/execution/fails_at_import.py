"""Imported by a warmed process: kills or stops it, hangs or raises, as often as the environment says."""

import os
import signal
import time
from pathlib import Path

_times, _what, _folder = os.environ.get("FAIL_AT_IMPORT", "0 none .").split(" ", 2)
_failed = len(list(Path(_folder).glob("failed.*")))
if _failed < int(_times):
    (Path(_folder) / f"failed.{_failed}").touch()
    if _what == "raise":
        raise OSError("libmade_up.so: cannot open shared object file")
    if _what == "hang":
        time.sleep(600)
    os.kill(os.getpid(), {"kill": signal.SIGKILL, "stop": signal.SIGSTOP, "interrupt": signal.SIGINT}[_what])
