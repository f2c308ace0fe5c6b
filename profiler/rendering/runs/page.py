"""Pages of runs that have no trial: an overview, and the sentences, figures and tables of each run."""

from collections.abc import Iterable, Iterator, Sequence

from profiler.rendering.document import (
    Block,
    Bullets,
    Code,
    Document,
    Figure,
    Heading,
    Medium,
    RenderedFigure,
    Row,
    Section,
    Table,
    Text,
    Tone,
    number_columns,
)


def runs_page(
    name: str,
    *,
    kind: str,
    question: str,
    columns: Sequence[str],
    rows: Sequence[Row],
    unit: str,
    runs: Sequence[Block],
) -> Document:
    """Return the page of all runs in a folder.

    Args:
        name: What ran.
        kind: Its kind: ``"a training script"``.
        question: What the page answers.
        columns: Of the overview.
        rows: Of the overview, one per run.
        unit: The unit of its sizes.
        runs: The section of each run.
    """
    first, *others = columns
    overview: list[Block] = [Table(number_columns(first, others), rows), Text(unit, Tone.NOTE)]
    return Document(
        title=name,
        window_title=f"{name}: GPU memory of {kind}",
        lead=Text(question, only=(Medium.HTML,)),
        blocks=[
            Section("Every run", overview, only=(Medium.HTML,)),
            Section("", overview, only=(Medium.MARKDOWN,)),
            *runs,
        ],
    )


def run_section(
    title: str,
    *,
    sentences: Iterable[str],
    figures: Iterable[RenderedFigure],
    tables: Iterable[Block],
    command: str,
    versions: str,
    text: str = "",
) -> Section:
    """Return what is shown of one run; `text` is preformatted, such as an estimate, and empty if there is none."""

    def blocks() -> Iterator[Block]:
        yield Bullets(list(sentences))
        yield from (Figure(figure, alt=title) for figure in figures)
        yield from tables
        if text:
            yield Code(text)
        yield Code(command, language="sh")
        yield Text(f"{versions}.", Tone.NOTE)

    return Section(title, list(blocks()))


def run_table(title: str, columns: Sequence[str], rows: Sequence[Row]) -> list[Block]:
    """Return one table of a run, below its title."""
    first, *others = columns
    return [Heading(title), Table(number_columns(first, others), rows)]
