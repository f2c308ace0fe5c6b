"""`report.html` in a real browser: no request to the network, no error in the console, and every control works."""

import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import builders
import pytest
from in_chromium import CHROMIUM, MISSING, chromium
from playwright.sync_api import Browser, Page, expect

from profiler import __version__
from profiler.domain.trials.trial import Backend
from profiler.rendering.layouts import html
from profiler.rendering.sweep import comparison
from profiler.report import main as drawing
from profiler.report.main import render_folder

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason=MISSING)

EVIL = "<script>document.title = 'broken'</script></script><img src=x onerror=alert(1)> & \"quoted\""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as found:
        yield found


@dataclass
class Seen:
    """An open page, with its requests and the messages of its console."""

    page: Page
    requests: list[str] = field(default_factory=list)
    messages: list[str] = field(default_factory=list)

    def texts(self, selector: str) -> list[str]:
        return self.page.locator(selector).all_inner_texts()


def opened(browser: Browser, path: Path, *, scheme: str = "light", width: int = 1200) -> Seen:
    seen = Seen(browser.new_page(color_scheme=scheme, viewport={"width": width, "height": 900}))
    seen.page.on("request", lambda request: seen.requests.append(request.url))
    seen.page.on("console", lambda message: seen.messages.append(message.text))
    seen.page.on("pageerror", lambda error: seen.messages.append(str(error)))
    seen.page.goto(path.as_uri())
    return seen


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """25 simulated trials, and one whose message, dataset and question contain a script."""
    records = builders.records(builders.lora_vs_full_specs())
    failed = builders.record(builders.spec(seed=1, dataset=EVIL), outcome=builders.failed(message=EVIL))
    place = tmp_path_factory.mktemp("results") / "made_up"
    builders.write_folder(place, [*records, failed], question=EVIL, command="run it again")
    render_folder(place, console=None)
    return place


@pytest.fixture
def seen(browser: Browser, folder: Path) -> Iterator[Seen]:
    found = opened(browser, folder / "report.html")
    yield found
    assert [url for url in found.requests if not url.startswith(("data:", "file:"))] == []
    assert found.messages == []
    found.page.close()


def test_tables_and_figures_are_shown_and_texts_are_escaped(seen: Seen, folder: Path) -> None:
    assert seen.page.title() == "made_up: GPU memory of GRPO training"
    assert seen.texts(".question") == [EVIL]
    assert len(seen.texts("table.trials tbody tr")) == 26
    assert seen.requests[0] == (folder / "report.html").as_uri()
    loaded = seen.page.evaluate("[...document.images].map((image) => image.complete && image.naturalWidth > 300)")
    assert loaded == [True] * 4  # comparison, categories, savings, estimate
    assert seen.texts(".answer")[0].startswith("Against full, memory (simulated) changes by: ")


def test_sorting_by_size_in_both_directions(seen: Seen) -> None:
    header = seen.page.locator("table.trials thead button", has_text="simulated, GiB")
    size = "table.trials tbody td:nth-child(4)"
    for ascending in (True, False):
        header.click()
        numbers = [float(text) for text in seen.texts(size) if text]
        assert numbers == sorted(numbers, reverse=not ascending)
        assert len(numbers) == 25


def test_filtering(seen: Seen) -> None:
    seen.page.get_by_role("searchbox").fill("lora 7b")
    shown = [text for text in seen.texts("table.trials tbody tr:not([hidden])") if text]
    assert len(shown) == 2
    assert all("LoRA" in text and "qwen2.5-7b" in text for text in shown)
    assert seen.texts("[data-count]") == ["2 of 26 trials"]
    seen.page.get_by_role("searchbox").fill("")
    assert seen.texts("[data-count]") == ["26 trials"]


def test_a_trial_opens_its_phases_categories_and_command(seen: Seen) -> None:
    first = seen.page.locator("button.open").first
    first.click()
    details = seen.page.locator(".details")
    assert details.count() == 1
    text = details.inner_text()
    for part in (
        "Peak of each phase",
        "What the peak is made of",
        "Total memory",
        "python -m profiler.sweep +grid=made_up",
    ):
        assert part in text
    assert first.get_attribute("aria-expanded") == "true"
    first.click()
    assert seen.page.locator(".details").count() == 0


def test_a_button_copies_the_command_of_a_trial(seen: Seen) -> None:
    seen.page.evaluate("navigator.clipboard.writeText = async (text) => { window.copied = text; }")
    seen.page.locator("button.open").first.click()
    box = seen.page.locator(".details .command")
    command = box.locator("pre").inner_text()
    seen.page.get_by_role("button", name="Copy the command of this trial").click()
    expect(box.locator("button")).to_have_text("Copied")
    assert seen.texts("#said") == ["The command is copied."]
    assert seen.page.evaluate("copied") == command
    assert command.startswith("python -m profiler.sweep")


def test_without_a_clipboard_the_command_is_selected(browser: Browser, folder: Path) -> None:
    found = opened(browser, folder / "report.html")
    found.page.evaluate("navigator.clipboard.writeText = () => Promise.reject(); document.execCommand = () => false")
    found.page.locator("section > .command button").click()
    expect(found.page.locator("section > .command button")).to_have_text("Press Ctrl+C")
    assert found.page.evaluate("getSelection().toString().trim()") == "run it again"
    found.page.close()


def test_the_page_says_when_and_by_what_it_was_made(seen: Seen, folder: Path) -> None:
    (text,) = seen.texts("footer p")
    assert re.fullmatch(rf"Made on \d{{4}}-\d\d-\d\d by grpo-vram {re.escape(__version__)}\. .*", text)
    links = [link.get_attribute("href") for link in seen.page.locator("footer a").all()]
    assert {"report.md", "comparison.csv", "table.tex"} <= set(links)
    assert all((folder / link).is_file() for link in links if "://" not in link)
    assert any(text.startswith("torch ") for text in seen.texts("section > p.note"))
    assert "Not shown: 1 of 26 trials" in "\n".join(seen.texts("figcaption"))


def test_rows_are_low_at_the_width_of_a_phone(browser: Browser, folder: Path) -> None:
    """Texts of columns that are out of sight made empty rows of 200 pixels."""
    found = opened(browser, folder / "report.html", width=390)
    rows = found.page.locator("table.matrix tbody tr")
    assert "needs" in rows.first.inner_text()
    assert max(row.bounding_box()["height"] for row in rows.all()) < 100
    found.page.close()


def test_a_message_is_never_run_as_a_script(seen: Seen) -> None:
    seen.page.get_by_role("searchbox").fill("failed")
    seen.page.locator("tr:not([hidden]) button.open").click()
    assert EVIL in seen.page.locator(".details").inner_text()
    assert seen.page.title() != "broken"


@pytest.mark.parametrize(("scheme", "ground"), [("light", "rgb(253, 253, 252)"), ("dark", "rgb(23, 24, 26)")])
@pytest.mark.parametrize("width", [390, 1200])
def test_both_themes_without_horizontal_scrolling(
    browser: Browser, folder: Path, scheme: str, ground: str, width: int
) -> None:
    found = opened(browser, folder / "report.html", scheme=scheme, width=width)
    found.page.locator("button.open").first.click()
    assert found.page.evaluate("getComputedStyle(document.body).backgroundColor") == ground
    assert found.page.evaluate("document.documentElement.scrollWidth") <= width
    found.page.close()


def test_a_measured_trial_has_its_utilisation_and_gpu_time(browser: Browser, tmp_path: Path) -> None:
    made_up = builders.outcome(builders.spec())
    phases = tuple(replace(peak, mean_utilisation_percent=12.4) for peak in made_up.peaks.phases)
    measured = builders.record(
        builders.spec(backend=Backend.CUDA, gpu=None), outcome=builders.changed(made_up, phases=phases, gpu_s=36.0)
    )
    builders.write_folder(tmp_path / "measured", [measured])
    render_folder(tmp_path / "measured", console=None)
    found = opened(browser, tmp_path / "measured" / "report.html")
    found.page.locator("button.open").first.click()
    text = found.page.locator(".details").inner_text()
    assert "GPU utilisation, mean of each phase" in text
    assert text.count("12 %") == len(phases)
    assert "GPU time of these trials: 36 s (0.01 h)." in found.texts("main > p.note")
    assert "GPU time of these trials: 36 s" in (tmp_path / "measured" / "report.md").read_text()
    found.page.close()


def test_a_page_without_trials(browser: Browser, tmp_path: Path) -> None:
    builders.write_folder(tmp_path / "empty", [])
    render_folder(tmp_path / "empty", console=None)
    found = opened(browser, tmp_path / "empty" / "report.html")
    assert found.texts("main p") == ["No trial is stored here yet."]
    assert found.messages == []
    found.page.close()


def test_a_long_list_is_completed_when_it_is_searched_sorted_or_asked_for(browser, folder, tmp_path, monkeypatch):
    monkeypatch.setattr(html, "MOST_TRIALS", 10)
    monkeypatch.setattr(comparison, "MOST_ROWS", 3)
    monkeypatch.setattr(drawing, "chosen", lambda sections, _limits: [()] * len(sections))  # rows need no figure
    copy = Path(shutil.copytree(folder, tmp_path / "made_up"))
    render_folder(copy, console=None)
    rows = "table.trials tbody tr:not([hidden])"

    def fresh() -> Seen:
        found = opened(browser, copy / "report.html")
        assert found.page.locator(rows).count() == 10
        assert found.page.locator("table.matrix tbody tr").count() == 3
        return found

    asked = fresh()
    asked.page.get_by_role("button", name="Show all 26 trials").click()
    assert asked.page.locator(rows).count() == 26
    assert asked.page.locator("button.rest").count() == 0
    whole = opened(browser, folder / "report.html")
    assert asked.texts(rows) == whole.texts(rows)
    asked.page.locator("button.open").last.click()
    whole.page.locator("button.open").last.click()
    assert asked.texts(".details") == whole.texts(".details")

    searched = fresh()
    searched.page.get_by_role("searchbox").fill("14b")
    assert searched.page.locator(rows).count() == 5

    ordered = fresh()
    for seen in (ordered, whole):
        seen.page.locator("table.trials thead button").nth(3).click()
    assert ordered.page.locator(rows).count() == 26
    assert ordered.texts(rows) == whole.texts(rows)
    for seen in (asked, whole, searched, ordered):
        assert seen.messages == []
        seen.page.close()


@pytest.fixture(scope="module")
def in_parts(browser: Browser, folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Seen]:
    """The same trials in a page that shows six of them at first, and eight more at a time."""
    copy = Path(shutil.copytree(folder, tmp_path_factory.mktemp("large") / "made_up"))
    with pytest.MonkeyPatch.context() as changed:
        changed.setattr(html, "MOST_TRIALS", 6)
        changed.setattr(html, "MOST_IN_FULL", 25)
        changed.setattr(drawing, "chosen", lambda sections, _limits: [()] * len(sections))
        render_folder(copy, console=None)
    page = copy / "report.html"
    page.write_text(page.read_text().replace("AT_ONCE = 1000", "AT_ONCE = 8"))
    found = opened(browser, page)
    yield found
    assert found.messages == []
    found.page.close()


def test_a_list_that_is_too_long_for_a_browser_is_shown_in_parts(browser, folder, in_parts):
    rows = "table.trials tbody tr:not([hidden])"
    whole, more = opened(browser, folder / "report.html"), in_parts.page.get_by_role("button", name="Show more trials")
    for shown in (6, 14, 22, 26):
        assert in_parts.texts(rows) == whole.texts(rows)[:shown]
        if shown < 26:
            assert f"The first {shown} of 26 are shown" in in_parts.texts("[data-rest] .note")[0]
            more.click()
    assert not more.is_visible()
    in_parts.page.locator("button.open").last.click()
    text = in_parts.page.locator(".details").inner_text()
    assert "Total memory" in text
    assert "What the peak is made of" not in text
    # Sorting and searching take the rows that are not shown, too.
    for column in (0, 3, 3, 2):
        for seen in (in_parts, whole):
            seen.page.locator("table.trials thead button").nth(column).click()
        assert in_parts.texts(rows) == whole.texts(rows)[:8]
    for wanted in ("lora 7b", "14b", "nothing of this", ""):
        for seen in (in_parts, whole):
            seen.page.get_by_role("searchbox").fill(wanted)
        assert in_parts.texts(rows) == whole.texts(rows)[:8]
        assert in_parts.texts("[data-count]") == whole.texts("[data-count]")
    assert more.is_visible()
    whole.page.close()


def test_names_in_a_list_that_is_shown_in_parts_are_never_run_as_a_script(in_parts):
    in_parts.page.get_by_role("searchbox").fill("failed")
    in_parts.page.locator("button.open").click()
    assert EVIL in in_parts.page.locator(".details").inner_text()
    assert in_parts.page.title() != "broken"
    in_parts.page.get_by_role("searchbox").fill("")
