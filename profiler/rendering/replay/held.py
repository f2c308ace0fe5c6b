"""Which lines of code hold the memory of a recorded history: a section of its page, and plain values."""

from collections.abc import Callable
from textwrap import wrap

from profiler.allocator.histories.course import BEFORE
from profiler.allocator.histories.held_lines import HeldLines, LineHolding
from profiler.rendering.document import Align, Cell, Column, Row, Section, Table, Text

_MOST_LINES = 20
_WIDTH = 44
NO_STACK = "no stack, such as from before the recording"
NO_STACKS_NOTE = (
    "Which lines of code hold the memory is unknown: the snapshot has no stacks. "
    "torch.cuda.memory._record_memory_history() stores them unless it is called with context=None."
)
_COLUMNS = (
    Column(title="requested by", align=Align.LEFT),
    *(Column(title=each) for each in ("held", "share", "blocks")),
)


def held_section(held: HeldLines, size_text: Callable[[float], str]) -> Section:
    """Return the lines that hold most of the memory, largest first, with bytes, share and number of blocks."""
    if not held.has_stacks:
        return Section("", [Text(NO_STACKS_NOTE)] if held.allocated_bytes else [])
    shown = held.largest[:_MOST_LINES]
    rows = [_row(each, held.allocated_bytes, size_text) for each in shown]
    return Section("", [Text(_title(held, size_text)), Table(_COLUMNS, rows), *_after(held, shown, size_text)])


def _title(held: HeldLines, size_text: Callable[[float], str]) -> str:
    where = "the beginning" if held.entry == BEFORE else f"entry {held.entry:,}"
    when = f"at the peak, after {where}" if held.refused is None else f"when it ran out of memory first, at {where}"
    return f"Who holds the {size_text(held.allocated_bytes)} that are allocated {when}:"


def _row(each: LineHolding, allocated_bytes: int, size_text: Callable[[float], str]) -> Row:
    first, *others = wrap(_name(each), _WIDTH, break_on_hyphens=False)
    share = f"{100 * each.size_bytes / allocated_bytes:.1f} %"
    return (Cell(text=first, lines=others), size_text(each.size_bytes), share, f"{each.blocks:,}")


def _name(each: LineHolding) -> str:
    return NO_STACK if each.line is None else str(each.line)


def _after(held: HeldLines, shown: tuple[LineHolding, ...], size_text: Callable[[float], str]) -> list[Text]:
    others = len(held.lines) - len(shown)
    rest_bytes = held.allocated_bytes - sum(each.size_bytes for each in shown)
    texts = []
    if others:
        lines = "1 other line" if others == 1 else f"{others:,} other lines"
        texts.append(Text(f"{lines} and the rests of blocks hold {size_text(rest_bytes)}."))
    if held.refused is not None:
        texts.append(Text(f"Refused: {size_text(held.refused.size_bytes)}, requested by: {_name(held.refused)}."))
    return texts


def held_mapping(held: HeldLines) -> dict[str, object]:
    """Return the same as plain values, with all lines and whole paths."""
    return {
        "entry": held.entry,
        "is_out_of_memory": held.refused is not None,
        "allocated_bytes": held.allocated_bytes,
        "refused": None if held.refused is None else _holding(held.refused),
        "largest": len(held.largest),
        "lines": [_holding(each) for each in held.lines],
    }


def _holding(each: LineHolding) -> dict[str, object]:
    line = each.line
    return {
        "file": line.file if line else None,
        "line": line.line if line and line.file else None,
        "function": line.function if line else None,
        "text": _name(each),
        "size_bytes": each.size_bytes,
        "blocks": each.blocks,
    }
