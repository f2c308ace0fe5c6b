"""A Python script that trains with trl, read without running it: literal arguments, and assumptions for all others."""

import ast
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

from profiler.config.files.arguments import is_flag, typed
from profiler.config.files.companion_files import LORA_NAMES, lora_values, with_inner_deepspeed
from profiler.config.files.file_kinds import LENGTHS, assumed_note, assumed_sizes, uncut_note
from profiler.config.files.foreign_formats import other_program
from profiler.config.files.vocabulary import BY_KEYS, renamed_keys
from profiler.config.foreign_text import NoLiteralError
from profiler.config.notes import Note
from profiler.config.options.reading import show
from profiler.config.scripts.adapters import (
    adapter_notes,
    apart,
    given_adapters,
    given_in_vain,
    given_several,
    has_more,
    left_open,
    names_of_arguments,
    of_old_trainer,
    of_run,
    of_trained,
    plain_arguments,
    read_bits,
    second_models,
    sets_on,
    sets_with_effect,
    unused_adapters,
    with_pin,
)
from profiler.config.scripts.declared import TRAINING_ARGUMENTS, TRL_CLASSES, Declared, Given
from profiler.config.scripts.evaluation import Evaluator
from profiler.config.scripts.names import (
    ANY,
    CAUSAL,
    LOADER,
    MAKES_BITS,
    QUANTISATION,
    RECIPES,
    RECOMPUTES,
    SCORES,
    TRAINERS,
    Found,
    Where,
    by_recipe,
    called_name,
    given_argument,
    of_classes,
    owner_name,
    parse_script,
)
from profiler.config.scripts.own_code import (
    add_modules,
    derived_trainers,
    foreign_trainers,
    given_arguments,
    imported,
    of_own_trainers,
    own_evaluation,
    spell_out,
    trains_without_trl,
)
from profiler.config.scripts.reached import Load, reached_calls, settled, trained_model, unread_of_loading
from profiler.config.scripts.unsloth import is_of_unsloth, with_unsloth
from profiler.config.scripts.variables import with_one_name_each, with_own_classes, with_quantisation, without_aliases
from profiler.config.trl.argument_keys import (
    BITSANDBYTES,
    KEY_OF,
    LOADED,
    NEUTRAL_VALUES,
    OF_EARLY_TRAINERS,
    is_trl_key,
    other_configs,
)
from profiler.config.trl.parts import JobFile
from profiler.config.trl_releases.facts import UNSTATED_DTYPE
from profiler.domain.errors import Fault
from profiler.domain.trials.recipe import Recipe


def script_part(name: str, text: str, given: Given | None = None, *, where: Where | None = None) -> JobFile:
    """Return what the calls in a script of trl say.

    Args:
        name: The script, for sentences.
        text: Its text.
        given: What is given with it; None if nothing is.
        where: How sentences name a line; None for ``line 5 of train.py``.

    Raises:
        ForeignTextError: It is not valid Python, or exceeds a limit.
    """
    said = where or (lambda number: f"line {number} of {name}")
    tree, given = parse_script(text), given or Given()
    without_aliases(tree)
    said = add_modules(tree, given.module, said)
    spell_out(tree)
    with_own_classes(tree, TRL_CLASSES)
    for change in (with_one_name_each, with_quantisation):
        change(tree)
    return with_pin(_Script(name, settled(tree, has_line=bool(given.line)), given, said).part(), text)


class _Script:
    """One script."""

    def __init__(self, name: str, tree: ast.Module, given: Given, where: Where) -> None:
        self._name, self._tree, self._given, self._where = name, tree, given, where
        self._declared = Declared(tree)
        self._evaluator = Evaluator(tree, self._declared, given, where)
        self._reached = reached_calls(tree, self._evaluator)
        self._calls = self._reached.calls
        self._configs = {**RECIPES, **of_classes(self._declared.derived(*RECIPES), RECIPES)}
        self._trainers = {**TRAINERS, **of_classes(derived_trainers(tree, TRAINERS), TRAINERS)}
        self._unread = unread_of_loading(tree, self._declared)
        self._is_of_unsloth = is_of_unsloth(self._called(LOADER))
        self._found = Found()
        self._bits: list[ast.Call] = []

    def part(self) -> JobFile:
        found = self._found
        recipe = self._recipe()
        self._read_parsed()
        for call in (configs := self._configs_read()):
            self._read(call, {})
        found.refuse_apart(configs, self._called(*self._trainers), self._where)
        for call in () if self._is_of_unsloth else self._called(*self._trainers):
            self._read(call, OF_EARLY_TRAINERS, only=True)
        self._read_sets(configs, None if self._is_of_unsloth else recipe)
        found.state_rest(self._literal_or, self._where)
        for call in self._called("ModelConfig"):
            self._read(call, dict.fromkeys(self._unread, ""))
        self._read_bits()
        self._read_adapter()
        self._read_models(recipe)
        recomputes = () if self._is_of_unsloth else self._called(*RECOMPUTES)
        found.state_recomputed(recomputes, self._reached.possible, self._where)
        trainers = [] if self._is_of_unsloth else self._called(*self._trainers)
        found.turn_off(plain_arguments(self._declared, trainers, {**found.values, **found.lines}, self._where))
        makes = self._is_of_unsloth or self._declared.reads_trl or self._called(LOADER, "LoraConfig", "get_peft_config")
        if configs and recipe is not None and not (trainers or makes):
            found.notes.append(Note(key="tuning", text=f"tuning=full ({self._name} makes no trainer)", is_open=True))
        faults = [*self._foreign(), *renamed_keys(self._name, found.values), *found.faults]
        if recipe is None and all(fault.key != "config" for fault in faults):
            problem = f"calls none of {', '.join(RECIPES)}, so what it trains is not in the file"
            faults.append(self._refused(problem, f"Give the script that does, or {BY_KEYS}."))
        notes = (*found.notes, *found.assumed(self._name, self._where), *self._open(recipe, is_read=bool(configs)))
        part = JobFile(name=self._name, values=found.values, recipe=recipe, notes=notes, faults=tuple(faults))
        part = replace(part, earlier=tuple(found.earlier), job=found.job)
        return with_inner_deepspeed(with_unsloth(part, self._tree, self._called, self._arguments))

    def _recipe(self) -> Recipe | None:
        names = {**self._configs, **self._trainers}
        recipes = list(dict.fromkeys(names[called_name(call)] for call in self._called(*names)))
        recipes = recipes or [RECIPES[each] for each in [self._declared.parsed_of_trl] if each]
        if len(recipes) > 1 and self._given.trainer in recipes:
            recipes = [self._found.chosen(recipes, self._given.trainer, self._name)]
            self._configs, self._trainers = (by_recipe(each, recipes[0]) for each in (self._configs, self._trainers))
        if len(recipes) > 1:
            hint, both = f"Give recipe={'|'.join(recipes)} as well.", " and ".join(recipes)
            self._found.faults.append(self._refused(f"trains by {both}, and one recipe is allowed", hint))
        is_open = not self._called(*self._trainers) and (self._declared.parsed_of_trl or self._called(*self._configs))
        self._trainers |= dict.fromkeys(given_arguments(self._tree, self._calls), recipes[0]) if is_open else {}
        return recipes[0] if recipes else None

    def _read_parsed(self) -> None:
        """Read what a parser fills: defaults of the script's own classes, a line's arguments, and what it sets then."""
        if not self._declared.reads_trl:
            return
        for key, default in self._declared.defaults_of_parsed():
            if is_trl_key(key) and key not in self._given.parsed and (value := self._literal_or(default)) is not None:
                self._found.values[key] = value
        for key, value in self._given.parsed.items():
            if key in self._unread:
                self._found.unread[key] = value
            elif is_trl_key(key) and key not in self._declared.only_own and value is not None:
                self._found.values[key] = value
        undecided = [pair for pair in self._given.undecided.items() if pair[0] not in self._found.values]
        self._found.notes += filter(None, (assumed_note(k, f"{self._given.line} has {text}") for k, text in undecided))
        if self._found.values.get("use_peft") is True and not self._called("get_peft_config", "LoraConfig"):
            self._found.values.pop("use_peft")  # the script makes no adapter of its arguments
            self._found.notes.append(Note(key="tuning", text=f"tuning=full ({self._name} does not use use_peft)"))

    def _configs_read(self) -> list[ast.Call]:
        """Return the calls that make the arguments of a trainer: of trl, or else of transformers."""
        names = (TRAINING_ARGUMENTS, *self._declared.derived(TRAINING_ARGUMENTS))
        plain = [] if self._is_of_unsloth else self._called(*names)
        given = {ast.unparse(each) for call in self._called(*self._trainers) for each in given_argument(call, "args")}
        return [*self._called(*self._configs), *(plain if given & self._declared.made_by(names) else [])] or plain

    def _read_bits(self) -> None:
        """Read how the weights of the trained model are quantised."""
        made = self._called("BitsAndBytesConfig")
        trained = trained_model(self._tree, self._models(), self._reached, is_quantised=True) if made else None
        self._bits = of_trained(self._tree, made, trained, self._reached)
        for call in self._bits:
            self._read(call, BITSANDBYTES, only=True)
            self._found.faults += read_bits(list(self._arguments(call)), self._found.values, self._where)

    def _models(self) -> list[ast.expr]:
        return [found for call in self._called(*self._trainers) for found in given_argument(call, "model", 0)]

    def _read_sets(self, configs: Sequence[ast.Call], recipe: Recipe | None) -> None:
        """Read what the script sets on the arguments after they are made."""
        names = names_of_arguments(self._tree, self._called(*self._trainers), configs, self._declared)
        sets = sets_on(self._reached, names, self._where, self._found)
        for key, value, is_certain in sets_with_effect(sets, recipe, self._found, self._where):
            if is_trl_key(key):
                self._set(key, value, is_certain=is_certain)

    def _set(self, key: str, expression: ast.expr, *, is_certain: bool) -> None:
        known, value = self._found.values.get(key), self._literal_or(expression, expression)
        kept = value if is_certain or known is None else known
        if not is_certain and value != known and key in KEY_OF and not isinstance(kept, ast.expr):
            how = "sets it under a condition that is not known" if kept is value else "may change it"
            text = f"{key}={show(kept)} ({self._where(expression.lineno)} {how})"
            self._found.notes.append(Note(key=KEY_OF[key], text=text))
        if isinstance(kept, ast.expr):
            self._found.refuse_set(key, self._where(expression.lineno))
            self._found.lines[key] = expression.lineno
            self._found.state_entries(key, kept, self._evaluator.entries)
        else:
            self._found.values[key] = kept

    def _foreign(self) -> Iterator[Fault]:
        names = of_run(imported(self._tree), self._tree, self._reached)
        own = {name for module, name in names if module.partition(".")[0] != "trl"}
        own |= {name for name, kind in self._declared.classes.items() if kind.names}
        trainers, configs = self._called(*self._trainers), [] if self._is_of_unsloth else self._called(*self._configs)
        config = next(map(called_name, configs), self._declared.parsed_of_trl)
        foreign = foreign_trainers(self._tree, trainers, config, self._calls, self._where)
        for problem in (*foreign, *given_in_vain(trainers, self._where)):
            yield self._refused(problem, f"Give {BY_KEYS}.")
        self._found.notes += of_own_trainers(self._tree, trainers, configs, self._where, self._declared.unseen)
        self._found.values |= own_evaluation(self._tree, trainers)
        called = [each for each in dict.fromkeys(map(called_name, self._calls)) if each not in own]
        others = [] if configs and self._given.trainer in self._configs.values() else other_configs(called)
        yield from (self._refused(problem) for problem in others)
        trained = {called_name(call) for call in self._called(*self._configs, *self._trainers)}
        names = [] if self._is_of_unsloth else names
        other = None if others else other_program(names, [owner_name(call) for call in self._calls], trained)
        if other is not None:
            yield self._refused(*other)
        elif not others and not self._declared.parsed_of_trl and trains_without_trl(names):
            problem = "takes its trainer from a module of its own, and imports nothing of trl"
            yield self._refused(problem, f"Give that module, or {BY_KEYS}.")

    def _refused(self, problem: str, hint: str = "") -> Fault:
        return Fault(key="config", found=self._name, problem=problem, hint=hint)

    def _called(self, *names: str) -> list[ast.Call]:
        return [call for call in self._calls if called_name(call) in names]

    def _read_adapter(self) -> None:
        made, trainers, found = self._called("LoraConfig"), self._called(*self._trainers), self._found
        unused = unused_adapters(self._tree, made, self._reached) if trainers else []
        calls = [each for each in made if each not in unused]
        found.notes += adapter_notes(self._reached, calls, unused, self._bits, self._where)
        if which := calls and not self._called("get_peft_model") and apart(trainers, self._reached, self._where):
            found.refuse_adapter(which, ", or tuning=full")
        if not calls:  # an adapter of which the file says nothing: the answer would be that of full fine-tuning
            given = given_adapters(self._tree, trainers, self._called("get_peft_model"))
            for line in [each.lineno for each in given if self._literal_or(each, each) is not None][:1]:
                found.refuse_adapter(f"in {self._where(line)}, which no LoraConfig of it makes", ", or tuning=full")
            return
        fields, open_keys = dict[str, object](), set[str]()
        for call in calls:
            for key, value, line in self._arguments(call):
                if not isinstance(value, ast.expr):
                    self._state(fields, key, value)
                elif key in LORA_NAMES:
                    open_keys.add(LORA_NAMES[key])
                    self._found.lines[LORA_NAMES[key]] = line
                elif key == ANY:  # which may state what has a default
                    open_keys.update(opened := left_open(call, has_file=self._given.own_file is not None))
                    self._found.lines.update(dict.fromkeys(() if self._given.own_file else opened, line))
        stated, notes = lora_values(fields, name=self._name)
        self._found.values.update({key: value for key, value in stated.items() if key not in open_keys})
        self._found.notes.extend(notes)

    def _read_models(self, recipe: Recipe | None) -> None:
        trained = SCORES if recipe is Recipe.REWARD else CAUSAL  # or what scores completions
        for call in [each for each in self._called(LOADER) if trained is CAUSAL and owner_name(each).endswith(SCORES)]:
            self._found.read_reward_model(call, self._literal_or)
        has_adapter = self._read_trained_model(trained)
        for call in () if "model_name_or_path" in self._found.values else self._called(*self._trainers):
            self._read(call, {"model": "model_name_or_path"}, first="model", only=True)
        for call in self._called("GRPOTrainer"):
            self._found.read_rewards(call, self._literal_or)
        self._found.earlier += [e for call in self._called("RewardTrainer") for e in of_old_trainer(call, self._where)]
        for call in (called := self._called("DPOTrainer", "KTOTrainer")):
            has_none = any(self._found.values.get(key) is True for key in ("use_peft", "precompute_ref_log_probs"))
            more = second_models(self._tree, call, self._where, self._literal_or)
            self._found.faults += more if has_none or has_adapter else ()
            if all(any(of_old_trainer(each, self._where)) for each in called):
                self._found.earlier += of_old_trainer(call, self._where)

    def _read_trained_model(self, classes: str | tuple[str, ...]) -> bool:
        """Read the loads that reach the trainer, or else all of `classes`; return whether one is of an adapter."""
        is_quantised = self._found.values.get("load_in_4bit") is True
        trained = trained_model(self._tree, self._models(), self._reached, is_quantised=is_quantised)
        if trained.adapter_line is not None and "use_peft" not in self._found.values:
            which = f"which {self._where(trained.adapter_line)} loads, and its file says what it is"
            self._found.refuse_adapter(which, " of its adapter_config.json")
        loads = tuple(load for load in trained.loads if load.call in self._calls)
        if not loads and not (trained.is_certain and trained.is_name):
            own = [call for call in self._called(LOADER) if owner_name(call).endswith(classes)]
            loads = tuple(Load(call=call, cast="") for call in own)
        if loads and not trained.is_name:
            self._found.state_loaded(is_wrapped=trained.is_wrapped)
        if trained.unseen_line and not loads and not {"use_peft", "load_in_4bit"} & self._found.values.keys():
            which = f"of the model that {self._where(trained.unseen_line)} gets, which nothing here makes"
            self._found.refuse_adapter(which, ", or tuning=full")
        for load in loads:
            self._found.refuse_scoring(load.call, classes, self._where)
            self._read(load.call, LOADED, first="pretrained_model_name_or_path", only=True)
            if self._found.read_type(load.call, load.cast, load.line, self._where):
                self._state(self._found.values, "dtype", UNSTATED_DTYPE)
            given = [] if self._declared.called & MAKES_BITS else given_argument(load.call, QUANTISATION)
            for line in [each.lineno for each in given if self._literal_or(each, each) is not None]:
                problem = f"loads weights by a {QUANTISATION} ({self._where(line)}) that is no BitsAndBytesConfig"
                self._found.faults.append(self._refused(f"{problem}, and no other has a formula", f"Give {BY_KEYS}."))
        return trained.adapter_line is not None

    def _read(self, call: ast.Call, names: Mapping[str, str], *, first: str = "", only: bool = False) -> None:
        """Read the arguments of a call by trl's names of them; `only` those of `names`, `first` the one without."""
        for argument, value, line in (each for each in self._arguments(call, first) if not only or each[0] in names):
            key = names.get(argument, argument)
            if not key:
                self._found.unread[argument] = value
            elif isinstance(value, ast.expr):
                self._found.lines[key], self._found.expressions[key] = line, value
                self._found.state_entries(key, value, self._evaluator.entries)
                several = given_several(self._tree, value, self._calls) if key in KEY_OF else []
                self._found.state_several(key, [self._literal_or(each, each) for each in several], self._name)
            else:
                self._state(self._found.values, key, value)

    def _arguments(self, call: ast.Call, first: str = "") -> Iterator[tuple[str, object, int]]:
        """Return each argument with its value, or with its expression where that is no literal, and its line."""
        named = [(keyword.arg, keyword.value) for keyword in call.keywords]
        for argument, expression in [*[(first, value) for value in call.args[:1] if first], *named]:
            self._evaluator.taken.clear()
            if argument is None:
                yield from self._spread(call, expression)
                continue
            value = self._literal_or(expression, expression)
            if not isinstance(value, ast.expr):
                self._found.note_defaults(argument, value, self._evaluator.taken, self._where(expression.lineno))
            yield argument, value, expression.lineno

    def _spread(self, call: ast.Call, expression: ast.expr) -> Iterator[tuple[str, object, int]]:
        """Return each entry of a mapping that a call passes on by ``**``."""
        try:
            entries = self._evaluator.entries(expression)
        except NoLiteralError:
            entries = {ANY: expression}
        where = f"{called_name(call)}, {self._where(expression.lineno)}"
        taken = list(dict.fromkeys(each.rstrip(",") for each in self._evaluator.taken))
        texts = [f"the defaults of {', '.join(taken)} in what ** adds to {where}"] if taken else []
        texts += [f"trl's defaults for what ** adds to {where}"] if ANY in entries else []
        self._found.notes += [Note(key="", text=text) for text in texts]
        yield from ((key, value, getattr(value, "lineno", expression.lineno)) for key, value in entries.items())

    def _state(self, values: dict[str, object], key: str, value: object) -> None:
        if value is None:
            self._found.notes += [uncut_note(self._name)] if key in LENGTHS and not self._is_of_unsloth else []
            return
        value = typed(key, value) if isinstance(value, str) and is_flag(key) else value  # of argparse: "true"
        known = values.setdefault(key, value)
        if known != value and (key in KEY_OF or key in NEUTRAL_VALUES):
            self._found.refuse_second(key, known, value, self._name)

    def _open(self, recipe: Recipe | None, *, is_read: bool) -> Iterator[Note]:
        """Return a note per size that is in none of the calls, and may be stated where they do not say it."""
        given = [each for each in self._called(*self._trainers) if given_argument(each, "args") or has_more(each)]
        if ANY in self._found.lines:
            why = f"{self._where(self._found.lines[ANY])} may state it by **"
        elif self._declared.reads_trl and not (self._given.line or self._given.recipe):
            why = f"{self._name} takes it from its command line"
        elif given and not (is_read or self._declared.reads_trl or self._is_of_unsloth):
            why = f"{self._where(given[0].lineno)} takes its arguments from elsewhere"
        else:
            return
        stated = {KEY_OF.get(key, key) for key in (*self._found.values, *self._found.lines)}
        yield from assumed_sizes(recipe, stated, why)
        if self._called("get_peft_config") and "use_peft" not in stated:
            yield Note(key="tuning", text=f"tuning=full ({why})", is_open=True)

    def _literal_or(self, expression: ast.expr, other: object = None) -> object:
        with suppress(NoLiteralError):
            return self._evaluator.value(expression)
        return other
