"""`python -m maintenance.benchmark.answers.asked KEY`: answer questions from stdin, one line of JSON each.

Runs in the environment of a predictor's package, with the repository on its path; it imports the standard library.
"""

import contextlib
import io
import json
import sys
import time
from importlib import import_module
from typing import Any

from maintenance.benchmark.adapters.question import NotCoveredError, Question


def main() -> int:
    """Write one line of JSON per question: bytes by metric or why it is not covered, and seconds."""
    module = import_module(f"maintenance.benchmark.adapters.packages.{sys.argv[1]}")
    for line in sys.stdin:
        question = Question(**json.loads(line))
        start = time.perf_counter()
        found: dict[str, Any] = {"row_id": question.row_id, "said": {}, "not_covered": ""}
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            try:
                found["said"] = dict(module.answer(question))
            except NotCoveredError as error:
                found["not_covered"] = str(error)
        found["seconds"] = time.perf_counter() - start
        sys.stdout.write(json.dumps(found) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
