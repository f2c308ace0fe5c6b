"""What was replaced in a run."""


class Replaced:
    """The names of everything that was replaced, in the order of the script's first use."""

    def __init__(self) -> None:
        self._by_kind: dict[str, dict[str, str]] = {}

    def add(self, kind: str, name: str, by: str) -> None:
        """Note that `name` was replaced by `by`; `kind` is a plural such as "weights"."""
        self._by_kind.setdefault(kind, {}).setdefault(name, by)

    def __bool__(self) -> bool:
        return bool(self._by_kind)

    def phrases(self) -> tuple[str, ...]:
        """Return one phrase per replacement, such as ``"tokenizer of tiny (one token per word)"``."""
        return tuple(
            f"{kind} {name} ({by})" for kind, replacements in self._by_kind.items() for name, by in replacements.items()
        )

    def line(self) -> str:
        """Return ``Substitutes: weights of A (random); data set B (...)``; empty if nothing was replaced."""
        return f"Substitutes: {'; '.join(self.phrases())}" if self else ""
