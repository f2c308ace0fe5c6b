"""The sources of a script: itself, and the files of its own project that it imports."""

import ast
from collections.abc import Iterator
from pathlib import Path

_MOST_FILES = 24
_MOST_BYTES = 1 << 20


def own_sources(script: Path | None) -> list[str]:
    """Return the text of the script, then those of files that it imports from its own folder or the current one."""
    if script is None:
        return []
    texts: dict[Path, str] = {}
    waiting = [script]
    while waiting and len(texts) < _MOST_FILES:
        path = waiting.pop(0)
        if path not in texts and path.stat().st_size <= _MOST_BYTES:
            texts[path] = path.read_text(errors="replace")
            waiting += _imported(texts[path], (path.parent, script.parent, Path.cwd()))
    return list(texts.values())


def _imported(text: str, folders: tuple[Path, ...]) -> Iterator[Path]:
    for name in _names(text):
        parts = name.split(".")
        found = (folder.joinpath(*parts) for folder in folders)
        candidates = (path for base in found for path in (base.with_suffix(".py"), base / "__init__.py"))
        path = next((path for path in candidates if path.is_file()), None)
        if path is not None:
            yield path


def _names(text: str) -> Iterator[str]:
    """Yield the modules that a source imports; of ``from a import b`` also ``a.b``, which may be one."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError):
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            inner = [f"{node.module}.{alias.name}" if node.module else alias.name for alias in node.names]
            yield from (*([node.module] if node.module else []), *inner)
