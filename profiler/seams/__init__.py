"""Private and unversioned details of other libraries that the project relies on: one registry, one check, one patch.

`registry.py` lists every detail as a `Seam`. `check_seams` (`checked.py`) compares them with the installed versions
before a trial runs, `patched` (`patching.py`) is the only way to replace one, and `python -m profiler.seams` prints
which of them hold. Nothing here imports torch or the other libraries before a seam is checked.
"""
