"""The page of a job on GitHub, to which its steps append Markdown."""

import os
from pathlib import Path

from profiler.storage.files.atomic import append

JOB_PAGE = "GITHUB_STEP_SUMMARY"
"""The environment variable with the file of the page."""


def append_to_job_page(text: str) -> None:
    """Append Markdown to the page of the job, where there is one.

    Raises:
        StorageError: The page cannot be written.
    """
    if os.environ.get(JOB_PAGE):
        append(Path(os.environ[JOB_PAGE]), text.encode())
