"""The pages of the site: those of the index, and every file of the repository that a page links to."""

from collections.abc import Iterator, Mapping, Sequence
from functools import cache, partial
from pathlib import Path, PurePosixPath

from maintenance.pages.links import Link, links_of, with_links

INDEX = PurePosixPath("docs/README.md")
"""The first page; its sections are the parts of the site."""

_PART = "\n## "
_TREE = "```{{toctree}}\n:hidden:\n{options}\n{pages}\n```"


def staged(root: Path) -> Mapping[str, bytes]:
    """Return the content of each file of the site's sources, by its path in the repository.

    Args:
        root: The repository.
    """
    found: dict[str, bytes] = {}
    placed, waiting = {INDEX}, [INDEX]
    linked = cache(partial(links_in, root))
    while waiting:
        page = waiting.pop(0)
        text = (root / page).read_text(encoding="utf-8")
        targets = list(_targets(root, page, text))
        children = [target for target in dict.fromkeys(targets) if target.suffix == ".md" and target not in placed]
        placed.update(children)
        # Pages that list most come first, so that a page is below the one that lists its kind.
        waiting = sorted([*waiting, *children], key=lambda each: -len(linked(each)))
        for file in targets:
            if file.suffix != ".md":
                found[str(file)] = (root / file).read_bytes()
        shown = with_links(text, lambda link, page=page: _without_folder(root, page, link))  # type: ignore[misc]
        found[str(page)] = "\n\n".join([shown.rstrip(), *_trees(page, text, children, root)]).encode() + b"\n"
    return found


def links_in(root: Path, page: PurePosixPath) -> set[PurePosixPath]:
    """Return the pages that a page links to."""
    text = (root / page).read_text(encoding="utf-8")
    return {target for target in _targets(root, page, text) if target.suffix == ".md"}


def _targets(root: Path, page: PurePosixPath, text: str) -> Iterator[PurePosixPath]:
    """Yield the files of the repository that a page links to."""
    for link in links_of(text):
        if link.path and not link.is_of_others and (root / page.parent / link.path).is_file():
            yield target_of(root, page, link)


def target_of(root: Path, page: PurePosixPath, link: Link) -> PurePosixPath:
    """Return the path in the repository that a link of a page points to."""
    target = (root / page.parent / link.path).resolve() if link.path else root / page
    return PurePosixPath(target.relative_to(root.resolve()).as_posix()) if link.path else page


def _without_folder(root: Path, page: PurePosixPath, link: Link) -> str | None:
    """Return the text of a link to a folder, which the site does not have."""
    is_folder = bool(link.path) and not link.is_of_others and (root / page.parent / link.path).is_dir()
    return link.text if is_folder else None


def _trees(page: PurePosixPath, text: str, children: Sequence[PurePosixPath], root: Path) -> Iterator[str]:
    """Yield the trees of the pages below a page: of the index one for each part, of others one."""
    if page != INDEX:
        if children:
            yield _tree(children, "")
        return
    for part in text.split(_PART)[1:]:
        title = part.partition("\n")[0]
        below = [target for target in _targets(root, page, part) if target in children]
        yield _tree(below, f":caption: {title}\n")


def _tree(pages: Sequence[PurePosixPath], options: str) -> str:
    names = "\n".join(f"/{target.with_suffix('')}" for target in pages)
    return _TREE.format(options=options, pages=names)
