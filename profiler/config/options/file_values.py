"""Values of a closed set in files of other programs: one that is not known is a fault, never a default."""

from collections.abc import Mapping, Sequence

from profiler.config.options.reading import show
from profiler.domain.errors import Fault, nearest

ZERO_STAGES = (0, 1, 2, 3)
"""`ZeroStageEnum` of DeepSpeed."""

DEVICES = ("none", "cpu", "nvme")
"""`OffloadDeviceEnum` of DeepSpeed."""

STRATEGIES: Mapping[str, bool] = {"FULL_SHARD": True, "SHARD_GRAD_OP": False, "1": True, "2": False}
"""Strategies of FSDP 1 that have a formula, by name and number, and whether each reshards after the forward.

Source: `FSDP_SHARDING_STRATEGY` of accelerate 1.15, whose numbers begin at 1.
"""

_WITHOUT_FORMULA = ("NO_SHARD", "HYBRID_SHARD", "HYBRID_SHARD_ZERO2", "3", "4", "5")

_TRUE = ("y", "yes", "t", "true", "on", "1")
_FALSE = ("n", "no", "f", "false", "off", "0")


def read_flag(value: object) -> bool | None:
    """Return the value of a flag as accelerate's and trl's parsers read it, also from a text; None if it is no flag.

    Source: `str_to_bool` of accelerate 1.15 and `string_to_bool` of trl 1.16, which has fewer words.
    """
    if isinstance(value, bool):
        return value
    word = str(value).lower() if isinstance(value, str | int) else ""
    return True if word in _TRUE else False if word in _FALSE else None


class FileValues:
    """Reader of values of closed sets, which keeps a fault per value that is not in its set.

    A key is a path, as ``section.key``. Each method returns what an absent key means, also after a fault.
    """

    def __init__(self, values: Mapping[str, object]) -> None:
        self._values = values
        self._faults: dict[str, Fault] = {}

    @property
    def faults(self) -> tuple[Fault, ...]:
        """Every fault so far, one per key."""
        return tuple(self._faults.values())

    def fail(self, key: str, problem: str, hint: str = "") -> None:
        """Keep a fault for `key`."""
        self._faults.setdefault(key, Fault(key=key, found=show(self.value(key)), problem=problem, hint=hint))

    def value(self, key: str) -> object:
        """Return the untyped value; None where the key or its section is absent."""
        section, _, last = key.rpartition(".")
        return (self.section(section) if section else self._values).get(last)

    def section(self, key: str) -> Mapping[str, object]:
        """Return the keys in a section; none where it is absent, null, false or empty."""
        value = self.value(key)
        if isinstance(value, Mapping):
            return value
        if value is not None and value is not False and value not in ("", []):
            self.fail(key, "must be a section of keys")
        return {}

    def one_of(self, key: str, allowed: Sequence[int | str]) -> int | str | None:
        """Return one of `allowed`, words in any case; None where the key is absent."""
        value = self.value(key)
        if value is None:
            return None
        if isinstance(value, bool) and value is False and "no" in allowed:
            return "no"  # YAML 1.1 reads `no` as false
        for each in allowed:
            same = value == each if isinstance(each, int) else str(value).lower() == each.lower()
            if same and not isinstance(value, bool) and isinstance(value, type(each)):
                return each
        words = list(map(str, allowed))
        quoted = isinstance(value, str) and value.strip() in words
        hint = "Write it without quotes." if quoted else nearest(show(value), words)
        self.fail(key, f"must be one of {', '.join(words)}", hint)
        return None

    def flag(self, key: str, *, default: bool = False) -> bool:
        """Return true or false, also from a text; `default` where the key is absent."""
        value = self.value(key)
        found = default if value is None else read_flag(value)
        if found is None:
            self.fail(key, "must be true or false")
            return default
        return found

    def reshards(self, key: str, *, default: bool) -> bool:
        """Return whether FSDP frees a layer after its forward, by a flag or a strategy; `default` where it is not."""
        value = self.value(key)
        if value is None or isinstance(value, bool):
            return default if value is None else value
        word = show(value).upper()
        if word in STRATEGIES:
            return STRATEGIES[word]
        if word in ("TRUE", "FALSE"):
            return word == "TRUE"
        strategies = [each for each in STRATEGIES if not each.isdecimal()]
        if word in _WITHOUT_FORMULA:
            self.fail(key, f"has no formula here; only {' or '.join(strategies)}")
        else:
            self.fail(key, f"must be true, false, {' or '.join(strategies)}", nearest(word, strategies))
        return default
