"""Large counts as text."""

_EXPONENTS = (9, 6, 3)


def count_text(number: object) -> str:
    """Return ``7615616512`` as ``"7.62e9"``, and counts below 1,000 as they are."""
    value = int(str(number))
    for exponent in _EXPONENTS:
        if value >= 10**exponent:
            return f"{value / 10**exponent:.3g}e{exponent}"
    return str(value)
