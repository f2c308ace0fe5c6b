"""A shell script that runs verl, read without running it: the overrides of its call, with variables that are literal.

Commands run in order, with every branch that a machine may take (`profiler.config.shell`). A value that branches give
differently keeps all of them; whatever else a shell does to a value leaves it unknown.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from profiler.config.foreign_text import ForeignTextError
from profiler.config.shell.running import Call, TextReader, commands_run, no_text
from profiler.config.shell.values import Item, Value

_CALLED = re.compile(r"(?:^|[./])main_(?!eval|generation)\w+(?:\.py)?$")
"""The module or file that trains: ``verl.trainer.main_ppo``, ``recipe.dapo.main_dapo``."""

_OWN = re.compile(
    r"(?:(?:^|[./])verl[./](?:trainer|experimental[./]transfer_queue)[./]|^(?:\./)?(?:trainer[./])?)"
    r"main_ppo(?:_sync|_v\d)?(?:\.py)?$|(?:(?:^|[./])dapo[./](?:src[./])?|^(?:\./)?)main_dapo(?:\.py)?$"
)
"""Those of verl itself, of which DAPO's samples otherwise and has verl's workers: no other package's, no other name."""

_OTHER_TRAINER = re.compile(r"(?:^|[./])(?:fsdp_)?sft_trainer\w*(?:\.py)?$")

_SEPARATE_GPUS = re.compile(
    r"(?:fully_async|one_step_off|split_placement)\w*[./]\w+(?:\.py)?$|(?:^|[./])main_ppo_split(?:\.py)?$"
)
"""Trainers of verl that generate and train on different GPUs at the same time, or have the critic on its own."""

_OVERRIDE = re.compile(r"(?:\+\+|\+|~)?([A-Za-z_][\w.]*\.[\w.]+)=(.*)", re.DOTALL)
_CHOICE = re.compile(
    r"(?:\+\+|\+|~)?([A-Za-z_]\w*(?:@[\w.]+)?|[A-Za-z_][\w.]*(?:/[\w.]+)+(?:@[\w.]+)?)=(.*)", re.DOTALL
)
"""A configuration group of Hydra: ``model_engine=megatron``, ``actor@actor_rollout_ref.actor=megatron_actor``."""

ENVIRONMENTS = ("activate", "bashrc", "profile", "set_env.sh", "conda.sh")
"""How files end that a script reads for its programs, and not for its settings."""

_MOST_WORDS = 2000
"""Most words of a call that is read."""


@dataclass(frozen=True, kw_only=True)
class Override:
    """One ``key=value`` of Hydra, with its text as the script passes it on."""

    text: str
    is_known: bool = True
    """Whether the script states the value."""
    alternatives: tuple[str, ...] = ()
    """The values of several branches, of which the machine takes one; empty if the value is known, or unknown."""
    because: str = ""
    """The condition of those branches."""
    is_added: bool = False
    """Whether ``+`` or ``++`` adds the key to a configuration that may lack it."""
    is_new: bool = False
    """Whether ``+`` adds it, which Hydra refuses where the configuration has it."""


@dataclass(frozen=True, kw_only=True)
class RunScript:
    """What a script passes to verl."""

    overrides: Mapping[str, Override]
    config_name: str
    """Of Hydra, as ``ppo_megatron_trainer``; empty if none is named."""
    groups: Mapping[str, Override]
    """Configuration groups of Hydra, as ``model_engine``."""
    unread: tuple[str, ...] = ()
    """Words of the call that the script does not state, which may be overrides, and files that it reads as its own."""
    of_fork: tuple[str, ...] = ()
    """The module or file of a fork that it calls; none if it calls verl's own."""


NOT_PASSED = "not passed"
"""Among the alternatives of an override: no branch of the script passes it."""


def read_run_script(text: str, called: Call | None = None, read: TextReader = no_text) -> RunScript:
    """Return what the script passes to verl.

    Args:
        text: The script.
        called: The command of another script that runs it; None if there is none.
        read: Returns the text of a file that it reads as its own.

    Raises:
        ForeignTextError: It does not call verl's trainer, calls it several times, or exceeds a limit.
    """
    calls: list[tuple[str, tuple[Item, ...]]] = []
    sourced: list[str] = []
    others = False
    for call in commands_run(text, called, read):
        texts = [item.value.text for item in call.items]
        if texts[:1] in (["source"], ["."]) and not texts[-1].endswith(ENVIRONMENTS):
            sourced += texts[1:2]
        others = others or any(_OTHER_TRAINER.search(each) for each in texts)
        separate = next((each for each in texts if _SEPARATE_GPUS.search(each)), None)
        if separate is not None:
            raise ForeignTextError(f"calls {separate}, which has parts of the job on different GPUs and is not read")
        start = next((n for n, each in enumerate(texts) if _CALLED.search(each)), None)
        if start is not None and any(_OVERRIDE.fullmatch(each) or _CHOICE.fullmatch(each) for each in texts[start:]):
            calls.append((texts[start], call.items[start + 1 :]))
    if not calls:
        trainer = (
            "verl's SFT trainer, which has no recipe here"
            if others
            else "no verl.trainer.main_ppo, so give what it sets as words (config=verl KEY=VALUE ...)"
        )
        raise ForeignTextError(f"calls {trainer}")
    if len(calls) > 1:
        raise ForeignTextError(f"calls verl's trainer {len(calls)} times, and one is read")
    trainer, items = calls[0]
    script = _script(items)
    of_fork = () if _OWN.search(trainer) else (trainer,)
    return replace(script, unread=tuple(dict.fromkeys([*sourced, *script.unread])), of_fork=of_fork)


def _script(items: Sequence[Item]) -> RunScript:
    if len(items) > _MOST_WORDS:
        raise ForeignTextError(f"passes more than {_MOST_WORDS:,} words to verl")
    overrides: dict[str, Override] = {}
    groups: dict[str, Override] = {}
    unread = []
    name = ""
    for item, following in zip(items, [*items[1:], Item(value=Value(text=""))], strict=True):
        word = item.value.text
        override, group = _OVERRIDE.fullmatch(word), _CHOICE.fullmatch(word)
        if override:
            overrides[override[1]] = _after(overrides.get(override[1]), _override(override[2], item), item)
        elif word.startswith("--config-name"):
            name = word.partition("=")[2] or following.value.text
        elif group:
            groups[group[1]] = _after(groups.get(group[1]), _override(group[2], item), item)
        elif not item.value.is_known and word.startswith(("$", "`")):
            unread.append(word)
    return RunScript(
        overrides=overrides, config_name=name.removesuffix(".yaml"), groups=groups, unread=tuple(dict.fromkeys(unread))
    )


def _override(text: str, item: Item) -> Override:
    """Return the override of a word, whose alternatives begin with the key as well."""
    value = item.value
    texts = tuple(dict.fromkeys(each.partition("=")[2] for each in value.alternatives))
    return Override(
        text=text,
        is_known=value.is_known,
        alternatives=texts,
        because=value.because,
        is_added=value.text.startswith("+"),
        is_new=re.match(r"\+(?!\+)", value.text) is not None,
    )


def _after(before: Override | None, found: Override, item: Item) -> Override:
    """Return an override that follows another of its key: it replaces it, if every branch passes it."""
    if item.is_certain:
        return found
    earlier = _possible(before) if before is not None else (NOT_PASSED,)
    texts = tuple(dict.fromkeys([*earlier, *_possible(found)]))
    if before is not None and len(texts) == 1:
        return before
    known = () if None in (*earlier, *_possible(found)) else tuple(text for text in texts if text is not None)
    return replace(found, is_known=False, alternatives=known, because=item.because or found.because)


def _possible(override: Override) -> tuple[str | None, ...]:
    """Return the values of an override; None for one that the script does not state."""
    return (override.text,) if override.is_known else override.alternatives or (None,)
