"""Reading of the list of claims: sources, setups and claims, or every fault in them."""

from collections.abc import Collection, Mapping

from profiler.config.claims.settings import Faults, Setup, read_range, read_setting
from profiler.config.foreign_text import ForeignTextError, parse_yaml
from profiler.domain.claims import (
    COUNTED_QUANTITIES,
    SCRIPT_QUANTITIES,
    TRIAL_QUANTITIES,
    VERL_QUANTITIES,
    By,
    Check,
    Claim,
    Quantity,
    Setting,
    Single,
    TextSource,
)
from profiler.domain.errors import Fault, UsageError, nearest

_FIELDS: Mapping[Check, tuple[str, ...]] = {
    Check.VALUE: ("quantity", "unit", "tolerance", "setup", "settings"),
    Check.CHANGE: ("quantity", "claimed", "tolerance", "setup", "settings"),
    Check.ENABLES: ("setup", "settings"),
    Check.ARITHMETIC: ("unit", "tolerance", "lines"),
    Check.LOOKED_UP: ("settings",),
    Check.UNDECIDABLE: ("because",),
}
"""What a claim needs besides its description, by its check."""

_QUANTITIES: Mapping[By, tuple[Quantity, ...]] = {
    By.VERL: VERL_QUANTITIES,
    By.SCRIPT: SCRIPT_QUANTITIES,
    By.COUNTED: COUNTED_QUANTITIES,
}

_DESCRIPTION = ("id", "source", "says", "figure", "check")


def read_claims(text: str, *, published: Collection[str]) -> tuple[Claim, ...]:
    """Return the claims of the list in `text`.

    Args:
        text: The content of `claims.yaml`.
        published: Ids of the published figures that a claim can name.

    Raises:
        UsageError: It is not valid YAML, or anything in it is wrong; carries every fault.
    """
    faults = Faults()
    try:
        document = faults.mapping("claims.yaml", parse_yaml(text))
    except ForeignTextError as error:
        raise UsageError([Fault(key="claims.yaml", found="(text)", problem=str(error))]) from error
    with faults.part("claims.yaml", document, needed=("sources", "setups", "claims")):
        sources = _sources(faults.mapping("sources", document.get("sources")), faults)
        setups = _setups(faults.mapping("setups", document.get("setups")), faults)
    claims: list[Claim] = []
    for values in faults.parts("claims", document.get("claims")):
        claim = _claim(values, sources, setups, faults)
        if claim is not None:
            _check_published(claim, published, faults)
            if any(claim.id == other.id for other in claims):
                faults.add("claims", claim.id, "is the id of two claims")
            claims.append(claim)
    if faults.found:
        raise UsageError(faults.found)
    return tuple(claims)


def _sources(values: Mapping[str, object], faults: Faults) -> dict[str, TextSource]:
    found = {}
    for name, value in values.items():
        place = f"sources.{name}"
        with faults.part(place, faults.mapping(place, value), needed=("title", "where")) as reader:
            title, where = reader.text("title", "the title of a text"), reader.text("where", "where the text is")
            found[name] = TextSource(id=name, title=title, where=where)
    return found


def _setups(values: Mapping[str, object], faults: Faults) -> dict[str, Setup]:
    found = {}
    for name, value in values.items():
        place = f"setups.{name}"
        parts = faults.mapping(place, value)
        by_verl = parts.get("by") == By.VERL.value
        needed = ("by", "gpu", "keys") if by_verl else ("by", "keys")
        with faults.part(place, parts, needed=needed) as reader:
            by = reader.choice("by", By)
            gpu = reader.text("gpu", "the name of a card") if by_verl else None
            found[name] = Setup(by=by, gpu=gpu, keys=faults.mapping(f"{place}.keys", parts.get("keys")))
    return found


def _claim(
    values: Mapping[str, object], sources: Mapping[str, TextSource], setups: Mapping[str, Setup], faults: Faults
) -> Claim | None:
    place = str(values.get("id", "claims[?]"))
    if values.get("check") not in list(Check):
        problem = f"must be one of {', '.join(Check)}"
        faults.add(f"{place}.check", values.get("check"), problem, nearest(str(values.get("check")), list(Check)))
        return None
    check = Check(str(values["check"]))
    own = _FIELDS[check]
    with faults.part(place, values, needed=(*_DESCRIPTION, *own)) as reader:
        source = reader.word("source", tuple(sources) or ("(none)",))
        setup = setups.get(reader.word("setup", tuple(setups) or ("(none)",))) if "setup" in own else None
        claim = Claim(
            id=reader.text("id", "a short name"),
            source=sources.get(source, TextSource(id=source, title="", where="")),
            says=reader.text("says", "a paraphrase"),
            figure=reader.text("figure", "a text, the claimed figure"),
            check=check,
            quantity=reader.choice("quantity", Quantity) if "quantity" in own else None,
            unit=reader.text("unit", "the unit of the figure") if "unit" in own else "%",
            claimed=read_range(reader, "claimed") if "claimed" in own else None,
            tolerance=reader.number("tolerance") if "tolerance" in own else 0.0,
            settings=_settings(check, values, place, setup, faults),
            because=reader.text("because", "a reason") if "because" in own else "",
        )
    _check_quantity(claim, setup, faults)
    return claim


def _settings(
    check: Check, values: Mapping[str, object], place: str, setup: Setup | None, faults: Faults
) -> tuple[Setting, ...]:
    name = "lines" if check is Check.ARITHMETIC else "settings"
    if name not in _FIELDS[check]:
        return ()
    found: list[Setting] = []
    for number, part in enumerate(faults.parts(f"{place}.{name}", values.get(name)), start=1):
        setting = read_setting(check, part, f"{place}.{name}[{number}]", setup=setup, faults=faults)
        if setting is not None:
            if any(setting.when == other.when for other in found):
                faults.add(f"{place}.{name}[{number}].when", setting.when, "names two settings of the claim")
            found.append(setting)
    return tuple(found)


def _check_quantity(claim: Claim, setup: Setup | None, faults: Faults) -> None:
    if claim.quantity is None or setup is None:
        return
    known = _QUANTITIES.get(setup.by, TRIAL_QUANTITIES)
    if claim.quantity not in known:
        problem = f"is not a quantity of setup {setup.by}; those are {', '.join(known)}"
        faults.add(f"{claim.id}.quantity", claim.quantity, problem)


def _check_published(claim: Claim, published: Collection[str], faults: Faults) -> None:
    for setting in claim.settings:
        if isinstance(setting, Single) and setting.published is not None and setting.published not in published:
            hint = nearest(setting.published, tuple(published))
            faults.add(f"{claim.id}.published", setting.published, "is not an id of measurements.csv", hint)
