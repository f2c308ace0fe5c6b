"""The page of formats is that of the declarations and of the counted files."""

from maintenance.pages.formats_page import PAGE, formats_page
from profiler.config.files.foreign_formats import FORMATS


def test_the_page_is_current():
    assert PAGE.read_text(encoding="utf-8").startswith(formats_page())


def test_every_format_has_a_row():
    text = formats_page()
    assert all(f"| {each.name} |" in text for each in FORMATS)
