"""Links of Markdown pages: where they are, what they point to, and the anchors of headings."""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

_FENCED = re.compile(r"^(`{3,})[^\n]*\n.*?^\1`*$", re.MULTILINE | re.DOTALL)
_CODE = re.compile(r"(?<!`)(`+)(?!`).*?(?<!`)\1(?!`)", re.DOTALL)
_LINK = re.compile(r"(?P<before>!?\[(?P<text>(?:[^\[\]]|\[[^\]]*\])*)\])\((?P<target>[^()\s]+)\)")
_HEADING = re.compile(r"^#{1,6} (.+)$", re.MULTILINE)


@dataclass(frozen=True, kw_only=True)
class Link:
    """One link or image of a page."""

    text: str
    path: str
    """Relative to the page; empty for a link within it."""
    anchor: str
    is_image: bool

    @property
    def is_of_others(self) -> bool:
        """Whether it leads to another site."""
        return ":" in self.path.partition("/")[0]


def links_of(page: str) -> Iterator[Link]:
    """Yield the links of a page of Markdown; code has none."""
    for match in _LINK.finditer(_without_code(page)):
        yield _link(page, match)


def with_links(page: str, replaced: Callable[[Link], str | None]) -> str:
    """Return the page with the links for which `replaced` returns Markdown in their place."""
    kept = _without_code(page)

    def replace(match: re.Match[str]) -> str:
        return replaced(_link(page, match)) or page[match.start() : match.end()]

    parts, end = [], 0
    for match in _LINK.finditer(kept):
        parts += [page[end : match.start()], replace(match)]
        end = match.end()
    return "".join([*parts, page[end:]])


def anchors_of(page: str) -> set[str]:
    """Return the anchors of the headings of a page, as GitHub makes them."""
    found: set[str] = set()
    for heading in _HEADING.findall(_FENCED.sub("", page)):
        slug = _slug(heading)
        repeated = (f"{slug}-{number}" for number in range(1, len(found) + 1))
        found.add(slug if slug not in found else next(each for each in repeated if each not in found))
    return found


def _slug(heading: str) -> str:
    text = re.sub(r"\]\([^)]*\)", "", heading).replace("[", "").replace("`", "")
    return re.sub(r"[^\w\- ]", "", text.lower()).strip().replace(" ", "-")


def _link(page: str, match: re.Match[str]) -> Link:
    path, _, anchor = match["target"].partition("#")
    return Link(
        text=page[slice(*match.span("text"))], path=path, anchor=anchor, is_image=match["before"].startswith("!")
    )


def _without_code(page: str) -> str:
    """Return the page with code that has as many other characters, so that places stay."""
    blanked = _FENCED.sub(_blank, page)
    return _CODE.sub(lambda match: "`" * len(match[0]), blanked)


def _blank(match: re.Match[str]) -> str:
    return re.sub(r"[^\n]", " ", match[0])
