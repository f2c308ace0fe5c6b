"""What the GPUs of a sweep cost."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from profiler.config.options.run_options import RunOptions
from profiler.config.prices import Price
from profiler.domain.cards.gpu import KNOWN_GPUS
from profiler.domain.errors import Fault, UsageError
from profiler.domain.machines.sweep_state import Money
from profiler.domain.trials.trial import Backend, TrialSpec
from profiler.measurement.driver.visible import VisibleGpus
from profiler.storage.foreign.price_file import PRICES, load_prices, unknown_cards_line


@dataclass(frozen=True, kw_only=True)
class GpuPrices:
    """Prices of GPUs per hour."""

    per_hour: float | None = None
    """Of each GPU, whatever card it is."""
    by_card: Mapping[str, Price] = field(default_factory=dict)
    card: str = ""
    """The visible card, by our name; empty if there is none, or if it is not known."""

    def of(self, spec: TrialSpec) -> Money | None:
        """Return what one GPU of a trial costs per hour; None if that is not known, or if it needs none."""
        if spec.backend is not Backend.CUDA:
            return None
        if self.per_hour is not None:
            return Money(amount=self.per_hour)
        # A capped card costs what the real one does.
        price = self.by_card.get(self.card or spec.gpu or "")
        return Money(amount=price.per_hour, currency=price.currency) if price is not None else None

    def of_one(self, specs: Iterable[TrialSpec]) -> Money | None:
        """Return the price of one GPU per hour if it is the same for all trials that need one; None otherwise."""
        found = {price for spec in specs if (price := self.of(spec)) is not None}
        return found.pop() if len(found) == 1 else None


def gpu_prices(options: RunOptions, visible: VisibleGpus) -> tuple[GpuPrices, str]:
    """Return the prices that the options name, and a line about cards of the file that are not known.

    Raises:
        UsageError: The file cannot be read, or has no prices.
    """
    if options.prices is None:
        return GpuPrices(per_hour=options.price_per_hour, card=card_of(visible)), ""
    if options.price_per_hour is not None:
        problem = "says what the GPUs cost, and so does price_per_hour"
        raise UsageError([Fault(key=PRICES, found=str(options.prices), problem=problem, hint="Leave one of them out.")])
    found = load_prices(str(options.prices))
    return GpuPrices(by_card=found.by_card, card=card_of(visible)), unknown_cards_line(found)


def card_of(visible: VisibleGpus) -> str:
    """Return our name of the first visible card; empty if there is none, or if it is not known."""
    first = next(iter(visible.gpus), None)
    if first is None:
        return ""
    return next((gpu.name for gpu in KNOWN_GPUS.values() if gpu.is_called(first.name, first.memory_bytes)), "")
