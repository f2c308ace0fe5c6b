"""Chromium for tests of pages."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager

from playwright.sync_api import Browser, sync_playwright

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
MISSING = "no Chromium: scripts/install_browser.sh installs it"

# Only the requests of the page itself.
_FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--disable-background-networking", "--disable-sync"]


@contextmanager
def chromium() -> Iterator[Browser]:
    """Start Chromium, and end it afterwards."""
    with sync_playwright() as driver:
        found = driver.chromium.launch(executable_path=CHROMIUM, args=_FLAGS)
        yield found
        found.close()
