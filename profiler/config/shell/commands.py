"""Commands of a shell script as a tree, and expansions whose value is known without running one."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from profiler.config.foreign_text import ForeignTextError
from profiler.config.shell.words import Operator, Token, Word, tokens

MOST_NESTED = 60
"""Most commands inside each other."""

_PROBE_OF_ASCEND = re.compile(
    r"""import\s+torch_npu\b.*?&&\s*echo\s+([\w.-]+)\s*\|\|\s*echo\s+([\w.-]+)\s*\)""", re.DOTALL
)
"""A question to the machine whose answer a card of NVIDIA is: whether there is a package for Ascend's."""

LONGEST_PROBE = 300

EXPR = re.compile(r"""(?:\$\(|`)\s*expr((?:\s+(?:\d+|\$\{?[A-Za-z_]\w*\}?|[-+/%]|\\\*|'\*'|"\*"))+)\s*[)`]""")
"""A calculation by `expr`, whose words are numbers, variables and operators: ``$(expr 16 / $nproc_per_node)``."""

COUNT = re.compile(
    r"""\$\(\s*(?:echo|printf\s+['"]%s\\n['"])\s+"?\$\{?([A-Za-z_]\w*)\}?"?\s*\|\s*"""
    r"""(?:awk\s+-F\s*['"]?,['"]?\s+'\{\s*print\s+NF\s*;?\s*\}'|tr\s+['"]?,['"]?\s+['"]\\n['"]\s*\|\s*wc\s+-l)\s*\)"""
)
"""How many parts a list with commas has: ``$(echo $CUDA_VISIBLE_DEVICES | tr ',' '\\n' | wc -l)``."""

ELEMENT = re.compile(r"""\$\{([A-Za-z_]\w*)\[\s*(?:(\d+)|\$?\{?([A-Za-z_]\w*)\}?)\s*\]\}""")
"""An element of an array, ``${models[0]}`` or ``${models[$i]}``."""

_PATH_OF = re.compile(r"(?:\$\(|`)\s*(?:which|command\s+-v|type\s+-[pP])\s+([\w.-]+)\s*[)`]")
"""Where a program is, which runs as by its name: ``$(which swift)``."""

INDICES = re.compile(r"\$\{!([A-Za-z_]\w*)\[[@*]\]\}")
"""The indices of an array, ``${!models[@]}``."""


def answer_of(source: str) -> str | None:
    """Return what a command says whose answer is known; None for any other. By hand, ``$(which swift)``: swift."""
    found = _PROBE_OF_ASCEND.search(source) or _PATH_OF.fullmatch(source)
    return found[found.re.groups] if found else None


@dataclass(frozen=True, kw_only=True)
class Simple:
    """A command with its arguments, or assignments."""

    words: tuple[Word, ...]


@dataclass(frozen=True, kw_only=True)
class Calculation:
    """``((expression))``."""

    expression: str


@dataclass(frozen=True, kw_only=True)
class Chain:
    """Commands joined by ``&&`` and ``||``; the first has no operator."""

    links: tuple[tuple[str, "Command"], ...]


@dataclass(frozen=True, kw_only=True)
class Negated:
    """``! command``."""

    command: "Command"


@dataclass(frozen=True, kw_only=True)
class Group:
    """Commands in braces, or in brackets or a pipeline, whose variables end with it."""

    body: tuple["Command", ...]
    is_subshell: bool


@dataclass(frozen=True, kw_only=True)
class Choice:
    """``if`` with its branches in order: the condition and the commands. The last condition is empty for ``else``."""

    branches: tuple[tuple[tuple["Command", ...], tuple["Command", ...]], ...]


@dataclass(frozen=True, kw_only=True)
class Case:
    """``case`` with the patterns and the commands of each clause."""

    subject: Word
    clauses: tuple[tuple[tuple[Word, ...], tuple["Command", ...]], ...]


@dataclass(frozen=True, kw_only=True)
class Loop:
    """``for``, ``while`` or ``until``; a ``for`` has a variable."""

    variable: str
    items: tuple[Word, ...]
    guard: tuple["Command", ...]
    body: tuple["Command", ...]


@dataclass(frozen=True, kw_only=True)
class Function:
    """The definition of a function."""

    name: str
    body: "Command"


Command = Simple | Calculation | Chain | Negated | Group | Choice | Case | Loop | Function

_LINE_ENDS = frozenset({";", "\n", "&"})
_CLAUSE_ENDS = frozenset({";;", ";&", ";;&"})
_CLOSING = frozenset({"fi", "done", "esac", "then", "else", "elif", "do", "}"})


def parse_commands(text: str) -> tuple[Command, ...]:
    """Return the commands of a script. What has no place in shell's grammar is passed over, as is an end that lacks.

    Raises:
        ForeignTextError: Commands are nested too deep.
    """
    parser = _Parser(tokens(text))
    commands: list[Command] = []
    while parser.token is not None:
        commands += parser.commands(frozenset())
        parser.advance()
    return tuple(commands)


class _Parser:
    """A parser with one token ahead."""

    def __init__(self, found: Iterable[Token]) -> None:
        self._tokens = iter(found)
        self._depth = 0
        self.token: Token | None = None
        self.advance()

    def advance(self) -> None:
        self.token = next(self._tokens, None)

    @property
    def _operator(self) -> str:
        return self.token.text if isinstance(self.token, Operator) else ""

    @property
    def _reserved(self) -> str:
        return self.token.plain if isinstance(self.token, Word) else ""

    def commands(self, ends: frozenset[str]) -> tuple[Command, ...]:
        """Return the commands up to a reserved word in `ends`, an operator that closes, or the end."""
        self._depth += 1
        if self._depth > MOST_NESTED:
            raise ForeignTextError(f"has commands that are nested more than {MOST_NESTED} deep")
        found: list[Command] = []
        while self.token is not None:
            if self._operator in _LINE_ENDS:
                self.advance()
            elif self._operator in _CLAUSE_ENDS or self._operator == ")" or self._reserved in ends:
                break
            elif self._reserved in _CLOSING or self._operator in ("&&", "||", "|", "|&"):
                self.advance()
            else:
                found.append(self._chain())
        self._depth -= 1
        return tuple(found)

    def _chain(self) -> Command:
        links = [("", self._pipeline())]
        while self._operator in ("&&", "||"):
            operator = self._operator
            self.advance()
            self._skip_lines()
            links.append((operator, self._pipeline()))
        return links[0][1] if len(links) == 1 else Chain(links=tuple(links))

    def _pipeline(self) -> Command:
        negated = 0
        while self._reserved == "!":
            negated += 1
            self.advance()
        stages = [self._command()]
        while self._operator in ("|", "|&"):
            self.advance()
            self._skip_lines()
            stages.append(self._command())
        found = stages[0] if len(stages) == 1 else Group(body=tuple(stages), is_subshell=True)
        return Negated(command=found) if negated % 2 else found

    def _skip_lines(self) -> None:
        while self._operator == "\n":
            self.advance()

    def _command(self) -> Command:
        operator = self._operator
        if operator.startswith("(("):
            self.advance()
            return Calculation(expression=operator[2:])
        if operator == "(":
            self.advance()
            body = self.commands(frozenset())
            self._pass_operator(")")
            return Group(body=body, is_subshell=True)
        match self._reserved:
            case "{":
                self.advance()
                return Group(body=self._closed("}"), is_subshell=False)
            case "if":
                return self._choice()
            case "case":
                return self._case()
            case "for" | "select":
                return self._for()
            case "while" | "until":
                self.advance()
                guard = self._closed("do")
                return Loop(variable="", items=(), guard=guard, body=self._closed("done"))
            case "function":
                self.advance()
                return self._function(self._taken_word())
        return self._simple()

    def _closed(self, *ends: str) -> tuple[Command, ...]:
        """Return the commands up to one of the reserved words, and pass it."""
        found = self.commands(frozenset(ends))
        if self._reserved in ends:
            self.advance()
        return found

    def _pass_operator(self, text: str) -> None:
        if self._operator == text:
            self.advance()

    def _taken_word(self) -> str:
        name = self._reserved
        if isinstance(self.token, Word):
            self.advance()
        return name

    def _choice(self) -> Command:
        branches = []
        ends = frozenset({"elif", "else", "fi"})
        self.advance()
        while True:
            guard = self._closed("then")
            branches.append((guard, self.commands(ends)))
            if self._reserved != "elif":
                break
            self.advance()
        if self._reserved == "else":
            self.advance()
            branches.append(((), self.commands(frozenset({"fi"}))))
        if self._reserved == "fi":
            self.advance()
        return Choice(branches=tuple(branches))

    def _case(self) -> Command:
        self.advance()
        subject = self.token if isinstance(self.token, Word) else Word(parts=())
        self.advance()
        self._skip_lines()
        if self._reserved == "in":
            self.advance()
        clauses = []
        self._skip_lines()
        while self.token is not None and self._reserved != "esac":
            self._pass_operator("(")
            patterns = []
            while self.token is not None and self._operator != ")":
                if isinstance(self.token, Word):
                    patterns.append(self.token)
                self.advance()
            self._pass_operator(")")
            clauses.append((tuple(patterns), self.commands(frozenset({"esac"}))))
            while self._operator in _CLAUSE_ENDS or self._operator in ("\n", ")"):
                self.advance()
        self.advance()
        return Case(subject=subject, clauses=tuple(clauses))

    def _for(self) -> Command:
        self.advance()
        variable = self._taken_word()
        items: list[Word] = []
        self._skip_lines()
        if self._reserved == "in":
            self.advance()
            while isinstance(self.token, Word):
                items.append(self.token)
                self.advance()
        self._closed("do")
        return Loop(variable=variable, items=tuple(items), guard=(), body=self._closed("done"))

    def _function(self, name: str) -> Command:
        self._pass_operator("(")
        self._pass_operator(")")
        self._skip_lines()
        self._depth += 1
        if self._depth > MOST_NESTED:
            raise ForeignTextError(f"has commands that are nested more than {MOST_NESTED} deep")
        body = self._command()
        self._depth -= 1
        return Function(name=name, body=body)

    def _simple(self) -> Command:
        words: list[Word] = []
        while isinstance(self.token, Word):
            words.append(self.token)
            self.advance()
            if len(words) == 1 and self._operator == "(" and words[0].plain:
                return self._function(words[0].plain)
        if not words:
            # An operator that has no place here.
            self.advance()
        return Simple(words=tuple(words))


MOST_CHARACTERS = 262_144
"""Longest script; those of verl have at most 20,000."""

_DOCUMENT = re.compile(
    r"""^[ \t]*read[ \t]+(?:-r[ \t]+)?-d[ \t]*(?:''|"")[ \t]+(?:-r[ \t]+)?([A-Za-z_]\w*)[ \t]*<<-?[ \t]*"""
    r"""(['"]?)(\w+)\2[ \t]*\r?\n(.*?)^[ \t]*\3[ \t]*\r?$""",
    re.MULTILINE | re.DOTALL,
)
"""A variable that is read from the lines that follow, ``read -r -d '' NAME <<EOF``."""


def parse_script(text: str) -> Sequence[Command]:
    """Return the commands of a script.

    Raises:
        ForeignTextError: It exceeds a limit.
    """
    if len(text) > MOST_CHARACTERS:
        raise ForeignTextError(f"has more than {MOST_CHARACTERS:,} characters, which is no run script")
    return parse_commands(_DOCUMENT.sub(_assigned_document, text))


def _assigned_document(found: re.Match[str]) -> str:
    """Return the assignment of a here-document; without a quote around its end, variables in it are expanded."""
    name, quote, text = found[1], found[2], found[4].strip()
    if quote:
        return f"{name}='" + text.replace("'", "'\\''") + "'"
    return f'{name}="' + text.replace('"', '\\"') + '"'


_SBATCH = re.compile(r"^#SBATCH[ \t]+(?:--([a-z-]+)(?:=|[ \t]+)|-([NnG])[ \t]*)(\S+)", re.MULTILINE)
"""An option of Slurm in the head of a batch script."""
_OF_SLURM: Mapping[str, Sequence[str]] = {
    **dict.fromkeys(("nodes", "N"), ("SLURM_NNODES", "SLURM_JOB_NUM_NODES")),
    **dict.fromkeys(("ntasks", "n"), ("SLURM_NTASKS", "SLURM_NPROCS")),
    **dict.fromkeys(("gpus", "G"), ("SLURM_GPUS",)),
    "gpus-per-node": ("SLURM_GPUS_ON_NODE", "SLURM_GPUS_PER_NODE"),
    "gres": ("SLURM_GPUS_ON_NODE",),
    "ntasks-per-node": ("SLURM_NTASKS_PER_NODE",),
}
"""The variables that Slurm sets by an option that is a number; before that of a node's GPUs there may be their kind."""


def slurm_counts(text: str) -> dict[str, str]:
    """Return the variables that Slurm sets by what a batch script says of its nodes, tasks and GPUs."""
    found: dict[str, str] = {}
    for option, letter, value in _SBATCH.findall(text):
        on_node, *others = _OF_SLURM.get(option or letter, ("",))
        kind, _, count = value.rpartition(":")
        if count.isdecimal() and on_node and (not kind or on_node == "SLURM_GPUS_ON_NODE"):
            found |= dict.fromkeys((on_node, *(others if not kind else ())), count)
    return found
