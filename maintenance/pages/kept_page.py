"""A page of kept results as Markdown: a title, its parts, and the command that writes it again.

It is no document of `profiler.rendering`: its parts are Markdown, with code and names as they are, and a block would
escape them.
"""


def kept_page(title: str, *parts: str, command: str) -> str:
    """Return the page.

    Args:
        title: Its title.
        parts: Headings, paragraphs, tables and lists in Markdown; empty ones are left out.
        command: Writes the page again.
    """
    return "\n\n".join([f"# {title}", *filter(None, parts), f"Regenerate with `{command}`."]) + "\n"
