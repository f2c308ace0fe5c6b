"""Scripts of which their text shows that they cannot notice how many layers their model has.

Such a script only hands its model from transformers to peft and to a trainer of trl. It may run with few layers, and
run once more if those are no answer, because it does nothing but train. The check knows names and not values: whatever
it has no rule for is refused, and the script runs with all layers.
"""

import ast
from collections.abc import Callable, Collection, Mapping
from pathlib import Path

_LIBRARY: Mapping[str, Collection[str]] = {
    "os": ("environ", "getenv", "path", "makedirs", "cpu_count"),
    "sys": ("argv", "exit", "stderr", "stdout"),
    "torch": ("bfloat16", "float16", "float32", "manual_seed", "cuda.is_available", "cuda.is_bf16_supported"),
    "datasets": ("Dataset", "DatasetDict", "load_dataset", "concatenate_datasets", "disable_progress_bars"),
    "transformers": ("AutoModelForCausalLM", "AutoTokenizer", "set_seed"),
    "peft": ("LoraConfig", "TaskType", "get_peft_model"),
    "trl": ("GRPOConfig", "GRPOTrainer", "SFTConfig", "SFTTrainer"),
}
"""What a script may use of libraries that can reach the model, the files or other processes."""

_HARMLESS = frozenset(
    {
        "__future__", "argparse", "collections", "dataclasses", "datetime", "enum", "functools", "itertools", "json",
        "logging", "math", "random", "re", "statistics", "string", "textwrap", "time", "typing", "warnings",
    }
)  # fmt: skip
"""Modules by which a script reaches neither objects that it did not make nor files."""

_REACHES_ANYTHING = frozenset(
    {
        "breakpoint", "compile", "delattr", "dir", "eval", "exec", "getattr", "globals", "help", "input", "locals",
        "open", "setattr", "super", "vars",
    }
)  # fmt: skip
"""Built-in names by which objects, code or files are reached without their name in the text."""

_LEAVES_TRACES = frozenset(
    {
        "FileHandler", "builtins", "f_back", "f_globals", "f_locals", "get_type_hints", "gi_frame", "handlers",
        "inspect", "io", "make_dataclass", "modules", "os", "push_to_hub", "save_pretrained", "save_to_disk", "sys",
        "tb_frame", "tb_next", "threading", "to_csv", "to_json", "to_parquet", "to_sql", "total_flos", "traceback",
        "types", "weakref",
    }
)  # fmt: skip
"""Members, of whatever object, that write files, lead to code or frames of libraries, or count the work of a model."""

_TRAINERS: Mapping[str, Collection[str]] = {
    "GRPOTrainer": (
        "model",
        "reward_funcs",
        "args",
        "train_dataset",
        "eval_dataset",
        "processing_class",
        "peft_config",
    ),
    "SFTTrainer": ("model", "args", "train_dataset", "eval_dataset", "processing_class", "peft_config"),
}
"""Trainers, and their arguments that do not act on layers. Callbacks and optimizers get the model itself."""

_MODEL_METHODS = ("gradient_checkpointing_enable", "enable_input_require_grads")
_CONFIG_FIELDS = ("use_cache", "pad_token_id", "eos_token_id", "bos_token_id")
_TRAINER_METHODS = ("train", "save_model", "save_state", "evaluate")
"""A run with few layers ends before it saves or evaluates."""

_Use = Callable[[ast.expr, ast.AST | None], bool]

_LOADS, _ADAPTS = "AutoModelForCausalLM", "get_peft_model"


def reason_to_run_whole(script: Path) -> str:
    """Return what of a script may depend on the number of layers, or may not run twice; empty if nothing."""
    hidden = [
        name for name in (*_LIBRARY, *_HARMLESS) if (script.parent / name).is_dir() or _file(script, name).exists()
    ]
    if hidden:
        return f"{hidden[0]} is a module next to it"
    try:
        tree = ast.parse(script.read_bytes())
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return "its text cannot be read"
    return _Check(tree).reason


def _file(script: Path, module: str) -> Path:
    return script.parent / f"{module}.py"


class _Check:
    """The check of one script."""

    def __init__(self, tree: ast.Module) -> None:
        self.reason = ""
        self._parents = {child: parent for parent in ast.walk(tree) for child in ast.iter_child_nodes(parent)}
        self._of: dict[str, tuple[str, str]] = {}
        """Module and name that each imported name stands for; the name is empty for a module itself."""
        nodes = list(ast.walk(tree))
        for node in nodes:
            self._import(node)
        self._held = {kind: frozenset(self._names_of(nodes, kind)) for kind in ("model", "trainer")}
        for node in nodes:
            self._visit(node)

    def _refuse(self, node: ast.AST, why: str) -> None:
        self.reason = self.reason or f"line {getattr(node, 'lineno', 0)} {why}"

    # ---- what is imported --------------------------------------------------------------------------------------------

    def _import(self, node: ast.AST) -> None:
        if isinstance(node, ast.Import):
            for each in node.names:
                if each.name not in _HARMLESS and each.name not in ("os", "sys", "torch"):
                    self._refuse(node, f"imports {each.name}")
                self._stand_for(node, each.asname or each.name, each.name, "")
        elif isinstance(node, ast.ImportFrom):
            for each in node.names:
                module = node.module or ""
                known = _LIBRARY.get(module, ())
                is_known = each.name in known if module not in _HARMLESS else not self._is_refused(each.name)
                if node.level or each.name == "*" or not is_known:
                    self._refuse(node, f"imports {each.name} from {module or 'its package'}")
                self._stand_for(node, each.asname or each.name, module, each.name)

    def _stand_for(self, node: ast.AST, name: str, module: str, member: str) -> None:
        if self._of.setdefault(name, (module, member)) != (module, member):
            self._refuse(node, f"imports two things as {name}")

    def _is(self, node: ast.AST, module: str, member: str) -> bool:
        return isinstance(node, ast.Name) and self._of.get(node.id) == (module, member)

    # ---- what holds the model ----------------------------------------------------------------------------------------

    def _kind_of(self, node: ast.AST) -> str:
        """Return whether a call makes a model or a trainer; empty if neither."""
        if not isinstance(node, ast.Call):
            return ""
        func = node.func
        loads = isinstance(func, ast.Attribute) and self._is(func.value, "transformers", _LOADS)
        if loads or self._is(func, "peft", _ADAPTS):
            return "model"
        return "trainer" if any(self._is(func, "trl", name) for name in _TRAINERS) else ""

    def _names_of(self, nodes: Collection[ast.AST], kind: str) -> Collection[str]:
        return {
            target.id
            for node in nodes
            if isinstance(node, ast.Assign) and self._kind_of(node.value) == kind
            for target in node.targets
            if isinstance(target, ast.Name)
        }

    # ---- what is done ------------------------------------------------------------------------------------------------

    def _visit(self, node: ast.AST) -> None:
        match node:
            case ast.Name(id=name):
                self._visit_name(node, name)
            case ast.Attribute(attr=name):
                self._visit_attribute(node, name)
            case ast.Call():
                self._visit_call(node)
            case ast.Global() | ast.Nonlocal() | ast.Delete() | ast.AsyncFunctionDef() | ast.Await():
                self._refuse(node, "changes names in another way than by assignment")
            case ast.ClassDef(bases=bases, keywords=keywords) if bases or keywords:
                self._refuse(node, "derives a class")
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name) if name in self._of:
                self._refuse(node, f"defines {name} anew")
            case ast.arg(arg=name) | ast.ExceptHandler(name=name) if name in self._of:
                self._refuse(node, f"uses {name} for something else")
            case ast.MatchAs(name=str()) | ast.MatchStar() | ast.MatchMapping() | ast.MatchClass():
                self._refuse(node, "takes values apart by a pattern")

    def _visit_name(self, node: ast.Name, name: str) -> None:
        if name in _REACHES_ANYTHING or (name.startswith("__") and name != "__name__"):
            self._refuse(node, f"uses {name}")
        elif name in self._of:
            self._visit_imported(node, *self._of[name])
        elif name in self._held["model"] and not self._is_fine(node, self._model_is_fine):
            self._refuse(node, f"does something with the model `{name}`")
        elif name in self._held["trainer"] and not self._is_fine(node, self._trainer_is_fine):
            self._refuse(node, f"does something with the trainer `{name}`")

    def _visit_imported(self, node: ast.Name, module: str, member: str) -> None:
        if not isinstance(node.ctx, ast.Load):
            self._refuse(node, f"uses {node.id} for something else")
        elif not member and module in _LIBRARY:
            path, top = self._path(node)
            if not any(path == known or path.startswith(f"{known}.") for known in _LIBRARY[module]):
                self._refuse(node, f"uses {module}.{path}")
            elif isinstance(top, ast.Attribute) and not isinstance(top.ctx, ast.Load):
                self._refuse(node, f"replaces {module}.{path}")
        elif module in ("transformers", "peft", "trl") and not self._library_is_fine(node):
            self._refuse(node, f"uses {node.id} in another way than by calling it")

    def _path(self, node: ast.Name) -> tuple[str, ast.AST]:
        """Return the attributes that follow a name, joined by dots, and the last of them."""
        names: list[str] = []
        at: ast.AST = node
        while isinstance(parent := self._parents.get(at), ast.Attribute):
            names.append(parent.attr)
            at = parent
        return ".".join(names), at

    def _library_is_fine(self, node: ast.Name) -> bool:
        parent = self._parents.get(node)
        if isinstance(parent, ast.Attribute):
            is_called = isinstance(above := self._parents.get(parent), ast.Call) and above.func is parent
            return (is_called and parent.attr == "from_pretrained") or self._is(node, "peft", "TaskType")
        return isinstance(parent, ast.Call) and parent.func is node

    def _is_refused(self, member: str) -> bool:
        return member.startswith("_") or member in _LEAVES_TRACES

    def _visit_attribute(self, node: ast.Attribute, name: str) -> None:
        if self._is_refused(name):
            self._refuse(node, f"uses the attribute {name}")

    def _visit_call(self, node: ast.Call) -> None:
        kind = self._kind_of(node)
        if not kind:
            return
        trainer = node.func.id if isinstance(node.func, ast.Name) else ""
        if kind == "trainer":
            known = _TRAINERS[self._of[trainer][1]]
            if len(node.args) > 1 or not {each.arg for each in node.keywords} <= set(known):
                self._refuse(node, f"gives {trainer} other arguments than {', '.join(known)}")
        if any(isinstance(each, ast.Starred) for each in node.args) or any(each.arg is None for each in node.keywords):
            self._refuse(node, "gives arguments that its text does not show")
        parent = self._parents.get(node)
        is_named = (
            isinstance(parent, ast.Assign) and len(parent.targets) == 1 and isinstance(parent.targets[0], ast.Name)
        )
        if not is_named and not self._is_fine(node, self._model_is_fine if kind == "model" else self._trainer_is_fine):
            self._refuse(node, f"makes a {kind} without a name")

    def _is_fine(self, node: ast.expr, use_is_fine: _Use) -> bool:
        """Return whether a model or a trainer is stored under its name, or used in a way that is known."""
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            # Only a call that makes one, or a text that names one, is stored there.
            return isinstance(self._parents.get(node), ast.Assign)
        return use_is_fine(node, self._parents.get(node))

    def _model_is_fine(self, node: ast.expr, parent: ast.AST | None) -> bool:
        match parent:
            case ast.keyword(arg="model"):
                return bool(self._kind_of(self._parents[parent]))
            case ast.Call(args=[first, *_]) if first is node and self._kind_of(parent):
                return True
            case ast.Attribute(attr=method) if method in _MODEL_METHODS:
                return self._is_statement(parent)
            case ast.Attribute(attr="config"):
                field = self._parents.get(parent)
                return (
                    isinstance(field, ast.Attribute)
                    and field.attr in _CONFIG_FIELDS
                    and isinstance(field.ctx, ast.Store)
                )
        return False

    def _trainer_is_fine(self, _: ast.expr, parent: ast.AST | None) -> bool:
        return isinstance(parent, ast.Attribute) and parent.attr in _TRAINER_METHODS and self._is_statement(parent)

    def _is_statement(self, method: ast.AST) -> bool:
        """Return whether a method is called, and its result dropped."""
        call = self._parents.get(method)
        return isinstance(call, ast.Call) and call.func is method and isinstance(self._parents.get(call), ast.Expr)
