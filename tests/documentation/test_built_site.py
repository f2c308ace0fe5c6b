"""The built documentation (`make docs`): no page asks another origin, no link is dead, and pages fit their window."""

import functools
import os
import re
import threading
from functools import cache
from html.parser import HTMLParser
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from in_chromium import CHROMIUM, MISSING, chromium

from maintenance.manual.staging import INDEX, staged
from maintenance.pages.files_page import ROOT

SITE = Path(os.environ.get("GRPO_VRAM_DOCS", ""))
pytestmark = pytest.mark.skipif(not os.environ.get("GRPO_VRAM_DOCS"), reason="`make docs` builds the site")
LOADED = {("script", "src"), ("img", "src"), ("iframe", "src"), ("source", "src"), ("video", "src"), ("object", "data")}
WIDTHS = (1280, 768, 390)
LOOKED_AT = (
    "README",
    "tutorials/will_it_fit",
    "explanation/memory",
    "keys",
    "how_to/recipe",
    "trouble",
    "reference/refused",
)


class Page(HTMLParser):
    """What a page loads, where its links lead, and which places it has."""

    def __init__(self, text):
        super().__init__()
        self.loaded, self.links, self.ids, self.styles = [], [], set(), ""
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        given = dict(attributes)
        self.ids |= {given[name] for name in ("id", "name") if given.get(name)}
        self.styles += given.get("style") or ""
        self.loaded += [given[name] for name in ("src", "data") if (tag, name) in LOADED and given.get(name)]
        if tag == "link" and not set((given.get("rel") or "").split()) & {"index", "search", "next", "prev", "author"}:
            self.loaded.append(given["href"])
        if tag == "a" and given.get("href"):
            self.links.append(given["href"])


@cache
def page_of(path):
    return Page(path.read_text(encoding="utf-8"))


def pages():
    found = sorted(SITE.rglob("*.html"))
    assert len(found) >= 100
    return found


def test_every_staged_page_is_built():
    names = {name.removesuffix(".md") for name in staged(ROOT) if name.endswith(".md")}
    assert len(names) >= 100
    assert [name for name in sorted(names) if not (SITE / f"{name}.html").is_file()] == []
    assert (SITE / INDEX.with_suffix(".html")).is_file()


def test_no_page_loads_anything_of_another_origin():
    loaded = {(path.name, address) for path in pages() for address in page_of(path).loaded}
    assert len(loaded) >= 100
    assert [
        each for each in sorted(loaded) if urlsplit(each[1]).netloc or urlsplit(each[1]).scheme not in ("", "data")
    ] == []


def test_no_style_loads_anything_of_another_origin():
    styles = [*SITE.rglob("*.css"), *pages()]
    addresses = [
        address
        for path in styles
        for address in re.findall(
            r"url\(\s*['\"]?([^'\")]+)|@import\s+['\"]([^'\"]+)", path.read_text(encoding="utf-8")
        )
    ]
    flat = [part for pair in addresses for part in pair if part]
    assert [each for each in flat if re.match(r"(https?:)?//", each)] == []


def test_no_link_is_dead():
    dead, count = [], 0
    for path in pages():
        for address in page_of(path).links:
            parts = urlsplit(address)
            if parts.scheme or parts.netloc:
                continue
            count += 1
            target = path.parent / unquote(parts.path) if parts.path else path
            is_missing = not target.is_file()
            if is_missing or (
                parts.fragment and target.suffix == ".html" and parts.fragment not in page_of(target.resolve()).ids
            ):
                dead.append(f"{path.relative_to(SITE)}: {address}")
    assert count >= 5000
    assert dead == []


class Handler(SimpleHTTPRequestHandler):
    def log_message(self, *_):
        """Be silent."""


@pytest.fixture(scope="module")
def address():
    server = ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Handler, directory=str(SITE)))
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/"
    server.shutdown()


@pytest.mark.skipif(CHROMIUM is None, reason=MISSING)
def test_pages_open_without_another_origin_and_fit_each_width(address):
    seen, errors, wide = [], [], []
    with chromium() as browser:
        for scheme in ("light", "dark"):
            context = browser.new_context(color_scheme=scheme)
            context.on("request", lambda request: seen.append(request.url))
            page = context.new_page()
            page.on("pageerror", lambda error: errors.append(str(error)))
            for width in WIDTHS:
                page.set_viewport_size({"width": width, "height": 900})
                for name in LOOKED_AT:
                    page.goto(f"{address}docs/{name}.html")
                    if page.evaluate("document.documentElement.scrollWidth > document.documentElement.clientWidth"):
                        wide.append((name, width, scheme))
            backgrounds = page.evaluate("getComputedStyle(document.body).backgroundColor")
            assert (backgrounds == "rgb(255, 255, 255)") == (scheme == "light")
            page.goto(address)
            page.wait_for_url("**/docs/README.html")
            context.close()
    assert len(seen) >= 100
    assert [url for url in seen if not url.startswith((address, "data:"))] == []
    assert errors == []
    assert wide == []


@pytest.mark.skipif(CHROMIUM is None, reason=MISSING)
def test_a_title_fits_a_phone_and_an_option_keeps_its_dashes(address):
    with chromium() as browser:
        page = browser.new_page(viewport={"width": 390, "height": 900})
        page.goto(f"{address}docs/README.html")
        title = "const style = getComputedStyle(each); return each.clientHeight < 2 * parseFloat(style.lineHeight)"
        assert page.locator("h1").evaluate(f"each => {{ {title} }}"), "one line"
        page.goto(f"{address}docs/reference/commands/monitor.html")
        assert "(key=value or --key value)" in page.locator("article").inner_text()


@pytest.mark.skipif(CHROMIUM is None, reason=MISSING)
def test_the_search_finds_a_page_of_a_command(address):
    with chromium() as browser:
        page = browser.new_page()
        page.goto(f"{address}search.html?q=vllm_gpu_memory_utilization")
        page.wait_for_selector("ul.search li a")
        assert any(
            "vllm" in found or "keys" in found
            for found in page.eval_on_selector_all("ul.search li a", "all => all.map(a => a.href)")
        )
