"""What a command that trains says of a job: its launcher, the files that it names, and its arguments over these."""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial, reduce
from pathlib import PurePosixPath

from profiler.config.files.arguments import Arguments, full_names, of_trl, read_arguments, typed
from profiler.config.files.companion_files import accelerate_part, with_inner_deepspeed
from profiler.config.files.file_kinds import EXTENDS, assumed_note, assumed_sizes, extended_files, trl_part
from profiler.config.files.formats.together import PROCESSES
from profiler.config.files.own_sections import FileKeys
from profiler.config.files.vocabulary import BY_KEYS, Vocabulary, memory_key, part_by
from profiler.config.launch.launchers import ACCELERATE, ACCELERATE_OPTIONS, TRL, Started, accelerate_values, with_words
from profiler.config.launch.lines import stem_of
from profiler.config.notes import SIZES, Note, not_counted
from profiler.config.options.reading import show
from profiler.config.scripts.declared import Given
from profiler.config.scripts.training_script import script_part
from profiler.config.trl.argument_keys import KEY_OF, is_trl_key
from profiler.config.trl.argument_values import OTHER_TRAINERS, recipe_of, trainer_is_known
from profiler.config.trl.parts import IS_LAUNCHED, JobFile
from profiler.domain.errors import Fault, UsageError
from profiler.domain.trials.recipe import Recipe

_RECIPE_FILES = (".yaml", ".yml", ".json")

_MOST_DEEP = 4
"""How many files extend one another."""

_FILES = ("deepspeed", "fsdp_config", "deepspeed_config_file")
"""Arguments of transformers, and the key of accelerate, that name a file of keys."""

_SHARDS = frozenset({"use_deepspeed", "use_fsdp"})
"""Options of `accelerate launch` that say how GPUs share memory, over its file."""

_SHARED = ("fsdp", "deepspeed")

_MODELS = frozenset({"model", "base_model", "model_name_or_path", "model_id_or_path"})
"""Keys by which programs with names of their own name the model."""

_PRECISIONS = frozenset({"bf16", "fp16"})
"""Keys of transformers that say what accelerate's `mixed_precision` says, whose variable the trainer leaves as it is.

Source: `TrainingArguments.__post_init__` of transformers 4.46 to 5.23, `ACCELERATE_MIXED_PRECISION`.
"""

_OF_ACCELERATE = "deepspeed_config"
"""The section of accelerate's file that may name DeepSpeed's."""

_OF_TWO = tuple(each for each in OTHER_TRAINERS if "_" in each)
_OTHER_TRAINERS = re.compile(rf"(?:^|_)({'|'.join(OTHER_TRAINERS)}|rm|distill\w*)(?:_|$)", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True)
class NamedFile:
    """A file that a command names."""

    name: str
    content: Mapping[str, object] | str
    """Its keys, or the text of a script."""


FileReader = Callable[[str], NamedFile | None]
"""Returns the file of a name; None if it is not there."""


def launch_parts(name: str, found: Started, read: FileReader) -> tuple[JobFile, ...]:
    """Return what a command says.

    Args:
        name: The shell script, or how the command is called in sentences.
        found: The command.
        read: Reads the files that it names.
    """
    arguments = with_words(read_arguments(found.arguments))
    options = found.options
    if found.launcher is TRL:
        options, arguments = _of_trl(arguments)
    job = _job_part(name, replace(found, options=options), read)
    unread = tuple(not_counted(f"what {name} passes on as {word}") for word in arguments.unread)
    job = replace(job, notes=(*job.notes, *found.notes, *unread), faults=(*job.faults, *_of_other_shards(found, job)))
    parts = tuple(_program_parts(name, found, arguments, read))
    if any(part.values[key] is not False for part in parts for key in _PRECISIONS & part.values.keys()):
        job = _without_precision(job)
    return (job, *(_under(job, part) for part in parts))


def _of_other_shards(found: Started, job: JobFile) -> Iterator[Fault]:
    """Refuse what accelerate shards where it starts another program, which decides types of weights by its own keys."""
    kind = "deepspeed" if job.job.get("zero_stage") else job.job.get("distributed_type")
    if found.by is ACCELERATE and kind in _SHARED:
        problem = f"is how accelerate shards the model, and is not read where it starts {found.launcher.name}"
        yield Fault(key="distributed_type", found=show(kind), problem=problem, hint=f"Give {BY_KEYS}.")


def _without_precision(job: JobFile) -> JobFile:
    values = {key: value for key, value in job.values.items() if key not in _PRECISIONS}
    return replace(job, values=values, notes=tuple(note for note in job.notes if note.key not in _PRECISIONS))


def _under(job: JobFile, part: JobFile) -> JobFile:
    """Return a part without what the launcher settles: a recipe's number of processes."""
    return replace(
        part,
        values={k: v for k, v in part.values.items() if k not in {*job.job, *(_PRECISIONS & job.values.keys())}},
        job={k: v for k, v in part.job.items() if k not in job.job or k != "num_processes"},
    )


def _of_trl(arguments: Arguments) -> tuple[Arguments, Arguments]:
    """Return the options that trl passes on to accelerate, and its own arguments."""
    arguments = full_names(arguments, ("config", *ACCELERATE_OPTIONS))
    passed = {
        key for key in (*arguments.values, *arguments.undecided) if key in ACCELERATE_OPTIONS and not is_trl_key(key)
    }
    return _only(arguments, passed), _only(arguments, {*arguments.values, *arguments.undecided} - passed)


def _only(arguments: Arguments, keys: set[str]) -> Arguments:
    return replace(
        arguments,
        values={key: value for key, value in arguments.values.items() if key in keys},
        undecided={key: text for key, text in arguments.undecided.items() if key in keys},
    )


def _job_part(name: str, found: Started, read: FileReader) -> JobFile:
    """Return how the launcher shares the work."""
    notes: list[Note] = []
    if found.launcher not in (ACCELERATE, TRL) and found.by is not ACCELERATE:
        count = found.launcher.processes(found.options)
        job: dict[str, object] = {"num_processes": count} if isinstance(count, int) else {}
        if count is not None and not job:
            notes.append(_processes_note(name, count))
        return JobFile(name=name, job=job, notes=tuple(notes))
    options = found.options
    stated: Mapping[str, object] = {}
    unread: Mapping[str, object] = {}
    file = options.value("config_file") or options.undecided.get("config_file", "")
    if file:
        there = read(file)
        if there is not None and isinstance(there.content, Mapping):
            stated = there.content
        elif (shipped := of_trl(file)) is not None:
            stated = shipped
            notes.append(Note(key="", text=f"{file} as trl has it"))
        else:
            unread = {"accelerate_file": file}
    undecided = options.undecided.get("num_processes")
    if undecided is not None:
        stated = {key: value for key, value in stated.items() if key != "num_processes"}
        notes.append(_processes_note(name, undecided))
    if not file and not options.values:
        return JobFile(name=name, notes=tuple(notes))
    launched = accelerate_values(options.values, stated)
    part = accelerate_part(name, with_files(launched, read))
    if launched.get("mixed_precision") == "bf16" and _PRECISIONS.isdisjoint(part.values):
        notes.append(Note(key="bf16", text="bf16=true (mixed_precision of accelerate, which the trainer takes)"))
        part = replace(part, values={**part.values, "bf16": True})
    if unread and not options.values.keys() & _SHARDS:
        part = replace(part, job={**{key: part.job[key] for key in part.job if key != IS_LAUNCHED}, **unread})
    return replace(part, notes=(*notes, *part.notes))


def _processes_note(name: str, said: object) -> Note:
    text = f"the fewest processes that the keys allow ({name} has {show(said)}; num_processes= counts it)"
    return Note(key="num_processes", text=text)


def _program_parts(name: str, found: Started, arguments: Arguments, read: FileReader) -> Iterator[JobFile]:
    """Return what the arguments, the recipe that they name and the script say."""
    if found.launcher.vocabulary is not None:
        yield _part_of_program(name, found, found.launcher.vocabulary, read)
        return
    path = f"{found.program.replace('.', '/')}.py" if found.is_module else found.program
    there = None if found.launcher is TRL else read(path)
    script = there or (read(f"{_SOURCES}/{path}") if found.is_module and found.launcher is not TRL else None)
    recipe, faults = _recipe_file(found, arguments, read)
    if script is not None and isinstance(script.content, str):
        given = Given(
            arguments=arguments.values,
            undecided=arguments.undecided,
            recipe=recipe,
            own_file=FileKeys(recipe, read={}) if recipe else None,
            line=name,
            trainer=found.trainer,
            module=partial(_module_of, found, read),
        )
        part = with_named_files(script_part(script.name, script.content, given), read)
        yield replace(part, faults=(*faults, *part.faults))
        return
    if faults:
        yield JobFile(name=name, faults=faults)
        return
    arguments = full_names(arguments)
    file = arguments.value("accelerate_config") or recipe.get("accelerate_config")
    there = read(file) if isinstance(file, str) else None
    if there is not None and isinstance(there.content, Mapping):
        recipe = {key: value for key, value in recipe.items() if key != "accelerate_config"}
        values = {key: value for key, value in arguments.values.items() if key != "accelerate_config"}
        arguments = replace(arguments, values=values)
        count = {**recipe, **values}.get("num_processes")
        own = {"num_processes": count} if count is not None else {}
        yield accelerate_part(there.name, with_files({**there.content, **own}, read))
    yield _trl_arguments(name, found, arguments, recipe, read)


def module_text(read: FileReader, name: str) -> str | None:
    """Return the text of a module of a script; None if it is not there, or cannot be read."""
    try:
        found = read(name)
    except UsageError:
        return None
    return found.content if found is not None and isinstance(found.content, str) else None


_SOURCES = "src"
"""The folder from which packages of a project are often installed."""


def _module_of(found: Started, read: FileReader, name: str) -> str | None:
    """Return the text of a module of a program: Python looks in its folder, and packages are below those above it."""
    folders = [PurePosixPath(_SOURCES)] if found.is_module else PurePosixPath(found.program).parents[:-1]
    places = (*(str(folder / each / name) for folder in folders for each in ("", _SOURCES)), name)
    return next((text for each in places if (text := module_text(read, each)) is not None), None)


def _part_of_program(name: str, found: Started, vocabulary: Vocabulary, read: FileReader) -> JobFile:
    """Return what the arguments of a program with names of its own say, over the file that they name."""
    arguments = read_arguments(found.arguments)
    recipe, faults = _recipe_file(found, arguments, read)
    over = {word.partition("=")[0]: word.partition("=")[2] for word in arguments.words if "=" in word}
    count = found.launcher.processes(found.options)
    variables = {**found.options.values, **found.options.undecided, **({} if count is None else {PROCESSES: count})}
    values = {
        **found.launcher.commands[found.program],
        **{key: value for key, value in recipe.items() if key not in arguments.undecided},
        **{key: value for key, value in arguments.values.items() if key != "config"},
        **{key: typed(key, text) for key, text in over.items()},
        **{key: value for key, value in variables.items() if key in vocabulary.by_rule},
    }
    rows = {key: text for key, text in arguments.undecided.items() if key.endswith("dataset")}  # For an evaluation.
    there = with_files({key: text for key, text in arguments.undecided.items() if key in _FILES}, read)
    files = {key: content for key, content in there.items() if isinstance(content, Mapping)}
    others = {key: text for key, text in arguments.undecided.items() if key not in rows | files}
    part = part_by(vocabulary, name, {**with_files(values, read), **files, **rows}, others)
    texts = [f"rows for an evaluation ({key}={text})" for key, text in rows.items() if key in vocabulary.by_rule]
    notes = (*(Note(key="", text=text) for text in texts), *part.notes)
    return replace(part, notes=notes, faults=(*faults, *_without_recipe(name, found, arguments, values), *part.faults))


def _without_recipe(name: str, found: Started, arguments: Arguments, values: Mapping[str, object]) -> Iterator[Fault]:
    """Refuse a command whose recipe is a word that the script does not state: it has the model, and all else."""
    if arguments.unread and _MODELS.isdisjoint(values) and _MODELS.isdisjoint(arguments.undecided):
        problem = f"is what {found.said} takes its model from, and {name} does not state it"
        hint = "Give that file in its place (config=FILE), or the command after --."
        yield Fault(key="config", found=arguments.unread[0], problem=problem, hint=hint)


def _recipe_file(
    found: Started, arguments: Arguments, read: FileReader
) -> tuple[Mapping[str, object], tuple[Fault, ...]]:
    """Return the keys of the recipe that the arguments name, and a fault if it is not there."""
    words = [word for word in arguments.words if word.endswith(_RECIPE_FILES)]
    file = arguments.value("config") or arguments.undecided.get("config", "") or next(iter(words), "")
    if not file or "=" in file:
        return {}, ()
    there = read(file)
    if there is not None and isinstance(there.content, Mapping):
        return there.content, ()
    problem = f"is the recipe of {found.said}, and there is no such file here"
    return {}, (Fault(key="config", found=file, problem=problem, hint="Give it as well, as config=FILE."),)


def _trl_arguments(
    name: str, found: Started, arguments: Arguments, recipe: Mapping[str, object], read: FileReader
) -> JobFile:
    """Return what arguments say that are read as trl's, over a recipe."""
    stated = {key: value for key, value in arguments.values.items() if key != "config"}
    # A file of DeepSpeed in a folder of the user's machine may be here.
    named = {key: text for key, text in arguments.undecided.items() if key in _FILES}
    values = {key: value for key, value in recipe.items() if key not in arguments.undecided} | stated | named
    part = trl_part(name, with_files(values, read))
    notes = [*part.notes]
    faults = [*part.faults]
    for key, said in arguments.undecided.items():
        if key in named:
            continue
        if key == "model_name_or_path":
            problem = f"is the model in {name}, which does not say what it is"
            faults.append(Fault(key="model", found=said, problem=problem, hint="Give model=."))
        if key == "num_processes":
            notes.append(_processes_note(name, said))
        note = assumed_note(key, f"{name} has {said}")
        if note is not None:
            notes.append(note)
    if found.launcher is TRL:
        kind, wrong = _recipe_of_trl(found.program)
        faults += _without_recipe(name, found, arguments, values)
    else:
        kind, wrong = _recipe_of_script(name, found, part.values)
        what = f"{found.program} is not here: its arguments count as trl's, and what else it sets is not known"
        notes.insert(0, Note(key="", text=what))
        stated_keys = {KEY_OF.get(key, key) for key in part.values}
        if stated_keys.isdisjoint(SIZES):
            notes.extend(assumed_sizes(kind, stated_keys, f"{found.program} is not here"))
        settled = {fault.key for fault in faults}
        own = [] if recipe else _own_arguments(found.program, arguments)
        faults += {fault.key: fault for fault in own if fault.key not in settled}.values()
    return replace(part, recipe=kind, notes=tuple(notes), faults=(*wrong, *faults))


def _own_arguments(program: str, arguments: Arguments) -> Iterator[Fault]:
    """Return a fault per argument that trl does not have, of a script that is not here, which may change memory."""
    for key in (*arguments.values, *arguments.undecided):
        settled_by = "" if is_trl_key(key) else memory_key(key)
        if settled_by and key not in _FILES and key != "config":
            said = show(arguments.values.get(key, arguments.undecided.get(key)))
            problem = f"is --{key} {said} of {program}, which is not here, and trl has no such argument"
            hint = f"Give {settled_by}= as well, or the script."
            yield Fault(key=settled_by, found=said, problem=problem, hint=hint)


def with_named_files(part: JobFile, read: FileReader) -> JobFile:
    """Return what a script says with the content of DeepSpeed's and FSDP's files that it names."""
    return with_inner_deepspeed(replace(part, values=with_files(part.values, read)))


def with_files(values: Mapping[str, object], read: FileReader) -> dict[str, object]:
    """Return the keys of a recipe, or of a file of accelerate, with the content of DeepSpeed's and FSDP's files.

    Args:
        values: The keys, of which some may name such a file.
        read: Reads it.
    """
    found = dict(extended(values, read))
    for key in _FILES:
        file = values.get(key)
        there = read(file) if isinstance(file, str) and file.endswith(_RECIPE_FILES) else None
        if there is not None and isinstance(there.content, Mapping):
            found[key] = there.content
    section = values.get(_OF_ACCELERATE)
    if isinstance(section, Mapping):
        found[_OF_ACCELERATE] = with_files(section, read)
    return found


def extended(values: Mapping[str, object], read: FileReader, depth: int = 0) -> Mapping[str, object]:
    """Return the keys of a file over those of the files that it extends; a name of one that is not there stays.

    By hand: ``{extends: base.yaml, grpo: {beta: 0}}`` over ``{grpo: {beta: 1, epsilon: 2}}`` is ``{grpo: {beta: 0,
    epsilon: 2}}``.
    """
    for key in (key for key in EXTENDS if key in values):
        there = [read(name) for name in extended_files(values[key]) if depth < _MOST_DEEP]
        bases = [each.content for each in there if each is not None and isinstance(each.content, Mapping)]
        if bases and len(bases) == len(there):
            own = {name: value for name, value in values.items() if name != key}
            values = reduce(_over, [*(extended(each, read, depth + 1) for each in bases), own])
    return values


def _over(base: Mapping[str, object], own: Mapping[str, object]) -> Mapping[str, object]:
    """Return keys over those of a base, by section."""
    pairs = {key: (base.get(key), value) for key, value in own.items()}
    deep = {
        key: _over(below, value) if isinstance(below, Mapping) and isinstance(value, Mapping) else value
        for key, (below, value) in pairs.items()
    }
    return {**base, **deep}


def _recipe_of_trl(command: str) -> tuple[Recipe | None, tuple[Fault, ...]]:
    if command in list(Recipe):
        return Recipe(command), ()
    problem = f"has no recipe here; the recipes are {', '.join(Recipe)}"
    return None, (Fault(key="config", found=f"trl {command}", problem=problem),)


def _recipe_of_script(
    name: str, found: Started, values: Mapping[str, object]
) -> tuple[Recipe | None, tuple[Fault, ...]]:
    """Return the trainer of a script that is not here, by its name or by keys that only one trainer has."""
    stem = stem_of(found.program)
    named = [each for each in Recipe if re.search(rf"(?:^|_){each}(?:_|$)", stem, re.IGNORECASE)]
    other, words = _OTHER_TRAINERS.search(stem), set(re.split(r"[^a-z]+", stem.lower()))
    # `online_dpo` is another trainer than `dpo`, also as `dpo_online`.
    is_of_both = any(each in other.split("_") and set(other.split("_")) <= words for each in named for other in _OF_TWO)
    if is_of_both or (other is not None and (not named or named[0].value in other[1].lower())):
        problem = f"is a trainer without a recipe here, by its name; the recipes are {', '.join(Recipe)}"
        return None, (Fault(key="config", found=found.program, problem=problem),)
    if named:
        return named[0], ()
    if trainer_is_known(values):
        return recipe_of(values)[0], ()
    problem = f"is started by {name}, and neither its name nor its arguments say which trainer it has"
    hint = f"Give recipe={'|'.join(Recipe)}, or the script as well."
    return None, (Fault(key="recipe", found=found.program, problem=problem, hint=hint),)
