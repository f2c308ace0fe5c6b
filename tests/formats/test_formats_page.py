"""The page of formats names every format; tests/documentation/test_reference_pages.py says whether it is current."""

from maintenance.pages.formats_page import formats_page
from profiler.config.files.foreign_formats import FORMATS


def test_every_format_has_a_row():
    text = formats_page()
    assert all(f"| {each.name} |" in text for each in FORMATS)
