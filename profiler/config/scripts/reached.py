"""Which calls of a script run: those under a condition that is known not to hold do not."""

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from profiler.config.scripts.evaluation import Evaluator


@dataclass
class Reached:
    """The calls of a script by what is known of the conditions above them."""

    certain: list[ast.Call] = field(default_factory=list)
    """Those under no condition that is unknown."""
    possible: list[ast.Call] = field(default_factory=list)
    """Those under a condition that the file does not decide."""
    passed: list[tuple[ast.Call, str]] = field(default_factory=list)
    """Those that do not run, each with the options whose defaults say so."""

    @property
    def calls(self) -> list[ast.Call]:
        """Every call that may run, in order."""
        return sorted([*self.certain, *self.possible], key=lambda call: (call.lineno, call.col_offset))


def reached_calls(tree: ast.Module, evaluator: Evaluator) -> Reached:
    """Return the calls of a script."""
    found = Reached()
    left: list[tuple[ast.AST, bool, str | None]] = [(tree, True, None)]
    while left:
        node, is_certain, why = left.pop()
        if isinstance(node, ast.Call):
            if why is not None:
                found.passed.append((node, why))
            else:
                (found.certain if is_certain else found.possible).append(node)
        if isinstance(node, ast.If | ast.IfExp) and why is None:
            left.extend(_branches(node, is_certain, evaluator))
        else:
            left.extend((child, is_certain, why) for child in ast.iter_child_nodes(node))
    return found


def _branches(
    node: ast.If | ast.IfExp, is_certain: bool, evaluator: Evaluator
) -> Iterator[tuple[ast.AST, bool, str | None]]:
    """Return the parts of a condition, with whether they run."""
    evaluator.taken.clear()
    holds = evaluator.holds(node.test)
    why = " and ".join(dict.fromkeys(evaluator.taken))
    yield node.test, is_certain, None
    for branch, runs in ((_listed(node.body), True), (_listed(node.orelse), False)):
        is_passed = holds is not None and holds is not runs
        yield from (
            (each, is_certain and (holds is not None or _is_main(node)), why if is_passed else None) for each in branch
        )


def _is_main(node: ast.If | ast.IfExp) -> bool:
    """Return whether the condition is that the script is started."""
    match node.test:
        case ast.Compare(left=ast.Name(id="__name__")):
            return True
    return False


def _listed(branch: "ast.expr | Sequence[ast.stmt]") -> "Sequence[ast.AST]":
    return [branch] if isinstance(branch, ast.AST) else branch
