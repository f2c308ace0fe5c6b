"""Words and operators of a shell script, in one pass over its text.

A script of a few lines can multiply its own words, so the work for one is limited here.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from profiler.config.foreign_text import ForeignTextError

MOST_DEPTH = 20
"""Most expansions, and most calls of functions, inside each other; deeper ones are unknown values."""

MOST_ALTERNATIVES = 8
"""Most values that a variable may have after several branches; with more it is unknown."""

COMMAND = 20
"""Work of a command, in characters."""

COPY = 2
"""Work of a variable that a branch copies, or of a word that an array or a command gets, in characters."""

_MOST_WORK = 2_000_000


class Budget:
    """The work that is left for one script, in characters that expansions produce."""

    def __init__(self) -> None:
        self._left = _MOST_WORK

    def spend(self, amount: int) -> None:
        """Take `amount` from what is left.

        Raises:
            ForeignTextError: Nothing is left.
        """
        self._left -= amount
        if self._left < 0:
            raise ForeignTextError("takes too long to read, because its variables or its branches multiply")


@dataclass(frozen=True, kw_only=True)
class Literal:
    """Characters that stand for themselves."""

    text: str
    is_quoted: bool = False


@dataclass(frozen=True, kw_only=True)
class Parameter:
    """``$NAME`` or ``${NAME...}``."""

    source: str
    name: str
    operator: str = ""
    """Such as ``:-``, ``:=``, ``:+``, ``:?``, ``,,``, ``^^`` or ``[@]``; empty for the plain value."""
    argument: tuple["Part", ...] = ()
    is_quoted: bool = False


@dataclass(frozen=True, kw_only=True)
class Arithmetic:
    """``$((expression))``."""

    source: str
    expression: str


@dataclass(frozen=True, kw_only=True)
class Opaque:
    """What only a shell can say: the output of a command, or an expansion that is not read."""

    source: str


Part = Literal | Parameter | Arithmetic | Opaque


@dataclass(frozen=True, kw_only=True)
class Word:
    """One word of a command; its parts follow each other without a space."""

    parts: tuple[Part, ...]
    array: tuple["Word", ...] | None = None
    """The elements of ``NAME=(...)``, whose name is in `parts`."""

    @property
    def plain(self) -> str:
        """The text of a word without quotes and expansions; empty for any other."""
        if len(self.parts) == 1 and isinstance(self.parts[0], Literal) and not self.parts[0].is_quoted:
            return self.parts[0].text
        return ""


@dataclass(frozen=True, kw_only=True)
class Operator:
    """A control operator, or a line break."""

    text: str


Token = Word | Operator

_GOES_ON = re.compile(r"(?<!\\)\\\Z")
_PLAIN = re.compile(r"[^\s;&|<>()'\"\\$`#]+")
_IN_QUOTES = re.compile(r'[^"\\$`]+')
_IN_ARGUMENT = re.compile(r"[^}'\"\\$`]+")
_SPACES = re.compile(r"[ \t\r\f\v]+")
_NAME = re.compile(r"[A-Za-z_]\w*|[0-9]+|[@*#?!$-]")
_NAMED = re.compile(r"[A-Za-z_]\w*|[0-9]|[@*#?!$-]")
_OPERATION = re.compile(r":?[-=+?]|,,|\^\^|\[[@*]\](?=\})")
_CONTROL = re.compile(r";;&|;;|;&|;|&&|&(?!>)|\|\||\|&|\||\(\(|\(|\)|\n(?:[ \t\r]*\n)*")
_REDIRECTION = re.compile(r"&>>|&>|<<<|<<-|<<|<&|<>|<(?!\()|>>|>&|>\||>(?!\()")
_ARRAY = re.compile(r"[A-Za-z_]\w*\+?=")
_BALANCED = re.compile(r"[^()'\"`\\]+")


def tokens(text: str) -> Iterator[Token]:
    """Return the tokens of a script in order. A quote, a bracket and a line that goes on end with the text."""
    return _Reader(_GOES_ON.sub("", text)).tokens()


@dataclass
class _Reader:
    text: str
    position: int = 0
    documents: list[str] = field(default_factory=list)
    """Ends of here-documents that begin at the next line break."""

    def tokens(self) -> Iterator[Token]:
        in_test = False
        while self._skip_spaces():
            if not in_test and self._is_redirection():
                self._redirection()
                continue
            control = _CONTROL.match(self.text, self.position)
            if control:
                self.position = control.end()
                is_line_break = control[0].startswith("\n")
                if is_line_break:
                    self.position = self._after_documents(control.start())
                if control[0] == "((":
                    yield Operator(text="((" + self._until("))"))
                elif in_test:
                    if not is_line_break:
                        yield _literal(control[0])
                else:
                    yield Operator(text="\n" if is_line_break else control[0])
                continue
            word = self._word(in_test=in_test)
            in_test = word.plain == "[[" or (in_test and word.plain != "]]")
            if word.parts:
                yield word

    def _skip_spaces(self) -> bool:
        """Pass spaces, comments and continued lines; return whether text is left. A comment begins a word."""
        while self.position < len(self.text):
            spaces = _SPACES.match(self.text, self.position)
            if spaces:
                self.position = spaces.end()
            elif self.text.startswith(("\\\n", "\\\r\n"), self.position):
                self.position = self.text.index("\n", self.position) + 1
            elif self.text[self.position] == "#":
                self._to_end_of_line()
            else:
                return True
        return False

    def _to_end_of_line(self) -> None:
        end = self.text.find("\n", self.position)
        self.position = len(self.text) if end < 0 else end

    def _is_redirection(self) -> bool:
        return _REDIRECTION.match(self.text, self.position) is not None

    def _redirection(self) -> None:
        """Pass a redirection with its target; the lines of a here-document follow at the next line break."""
        found = _REDIRECTION.match(self.text, self.position)
        assert found is not None
        self.position = found.end()
        spaces = _SPACES.match(self.text, self.position)
        self.position = spaces.end() if spaces else self.position
        if self.position < len(self.text) and self.text[self.position] not in "\n;|)":
            start = self.position
            self._word()
            if found[0] in ("<<", "<<-"):
                self.documents.append(re.sub(r"['\"\\]", "", self.text[start : self.position]))
            if self.position == start:
                self.position += 1

    def _after_documents(self, line_break: int) -> int:
        """Return the position after the here-documents that begin behind a line break, or after its blank lines."""
        if not self.documents:
            return self.position
        position = line_break + 1
        for ending in self.documents:
            while position < len(self.text):
                end = self.text.find("\n", position)
                end = len(self.text) if end < 0 else end
                line, position = self.text[position:end].strip(), end + 1
                if line == ending:
                    break
        self.documents.clear()
        # The last line break ends the command.
        return min(position, len(self.text))

    def _word(self, *, in_test: bool = False, in_array: bool = False) -> Word:
        parts: list[Part] = []
        start = self.position
        while self.position < len(self.text):
            plain = _PLAIN.match(self.text, self.position)
            if plain:
                parts.append(Literal(text=plain[0]))
                self.position = plain.end()
                following = self.text[self.position : self.position + 1]
                is_first = plain.start() == start
                if is_first and following in ("<", ">") and plain[0].isdecimal() and not in_test:
                    # The number of a redirection, as in 2>&1.
                    self._redirection()
                    return Word(parts=())
                if is_first and following == "(" and _ARRAY.fullmatch(plain[0]) and not in_array:
                    return Word(parts=tuple(parts), array=self._array())
                continue
            character = self.text[self.position]
            if self.text.startswith(("<(", ">("), self.position):
                parts.append(self._substitution(2))
            elif character in " \t\r\f\v\n;&|()<>":
                break
            elif character == "#":
                parts.append(Literal(text="#"))
                self.position += 1
            elif self.text.startswith(("\\\n", "\\\r\n"), self.position):
                self.position = self.text.index("\n", self.position) + 1
            elif character.isspace():
                break
            else:
                parts += self._part(0)
        if self.position == start:
            # No word begins here: a character that no rule knows.
            parts.append(Literal(text=self.text[start]))
            self.position += 1
        return Word(parts=tuple(parts))

    def _array(self) -> tuple[Word, ...]:
        """Return the elements of an array whose bracket is next."""
        self.position += 1
        words: list[Word] = []
        while self._skip_spaces() and self.text[self.position] != ")":
            if self.text[self.position] in "\n;&|(<>":
                self.position += 1
            else:
                words.append(self._word(in_array=True))
        self.position += 1
        return tuple(word for word in words if word.parts)

    def _part(self, depth: int, *, in_quotes: bool = False) -> list[Part]:
        """Return the parts that begin with a quote, a backslash, a dollar sign or a backtick."""
        character = self.text[self.position]
        if character == "'" and not in_quotes:
            return [self._single_quoted(1)]
        if character == '"':
            self.position += 1
            return self._double_quoted(depth)
        if character == "\\":
            escaped = self.text[self.position + 1 : self.position + 2]
            self.position += 2
            if escaped == "\n":
                return []
            kept = "" if not in_quotes or escaped in ('"', "\\", "$", "`") else "\\"
            return [Literal(text=kept + escaped, is_quoted=True)]
        if character == "`":
            start = self.position
            end = self.text.find("`", start + 1)
            self.position = len(self.text) if end < 0 else end + 1
            is_comment = self.text.startswith("#", start + 1) and "\n" not in self.text[start : self.position]
            return [] if is_comment else [Opaque(source=self.text[start : self.position])]
        if character == "$":
            return [self._dollar(depth, in_quotes=in_quotes)]
        self.position += 1
        return [Literal(text=character, is_quoted=in_quotes)]

    def _single_quoted(self, skipped: int) -> Literal:
        start = self.position + skipped
        end = self.text.find("'", start)
        end = len(self.text) if end < 0 else end
        self.position = end + 1
        return Literal(text=self.text[start:end], is_quoted=True)

    def _double_quoted(self, depth: int) -> list[Part]:
        """Return what is left of a text in double quotes, and pass the closing quote."""
        parts: list[Part] = [Literal(text="", is_quoted=True)]
        while self.position < len(self.text) and self.text[self.position] != '"':
            plain = _IN_QUOTES.match(self.text, self.position)
            if plain:
                parts.append(Literal(text=plain[0], is_quoted=True))
                self.position = plain.end()
            else:
                parts += self._part(depth, in_quotes=True)
        self.position += 1
        return parts

    def _dollar(self, depth: int, *, in_quotes: bool) -> Part:
        start = self.position
        if self.text.startswith("$((", start):
            self.position += 3
            expression = self._until("))")
            return Arithmetic(source=self.text[start : self.position], expression=expression)
        if self.text.startswith("$(", start):
            return self._substitution(2)
        if self.text.startswith("${", start):
            return self._braces(start, depth, in_quotes=in_quotes)
        if self.text.startswith("$'", start) and not in_quotes:
            return self._single_quoted(2)
        if self.text.startswith('$"', start) and not in_quotes:
            self.position += 1
            return Literal(text="")
        name = _NAMED.match(self.text, start + 1)
        if name is None:
            self.position += 1
            return Literal(text="$", is_quoted=True)
        self.position = name.end()
        return Parameter(source=name.string[start : name.end()], name=name[0], is_quoted=in_quotes)

    def _braces(self, start: int, depth: int, *, in_quotes: bool) -> Part:
        name = _NAME.match(self.text, start + 2)
        operation = _OPERATION.match(self.text, name.end()) if name else None
        self.position = start + 2
        if name is not None and self.text.startswith("}", name.end()):
            self.position = name.end() + 1
            return Parameter(source=self.text[start : self.position], name=name[0], is_quoted=in_quotes)
        if name is None or operation is None or depth >= MOST_DEPTH:
            self._pass_braces()
            return Opaque(source=self.text[start : self.position])
        self.position = operation.end()
        argument: list[Part] = []
        while self.position < len(self.text) and self.text[self.position] != "}":
            plain = _IN_ARGUMENT.match(self.text, self.position)
            if plain:
                argument.append(Literal(text=plain[0], is_quoted=in_quotes))
                self.position = plain.end()
            else:
                argument += self._part(depth + 1)
        self.position += 1
        return Parameter(
            source=self.text[start : self.position],
            name=name[0],
            operator=operation[0].replace("[*]", "[@]"),
            argument=tuple(argument),
            is_quoted=in_quotes,
        )

    def _pass_braces(self) -> None:
        depth = 1
        for found in re.compile(r"[{}]").finditer(self.text, self.position):
            depth += 1 if found[0] == "{" else -1
            if depth == 0:
                self.position = found.end()
                return
        self.position = len(self.text)

    def _substitution(self, opening: int) -> Opaque:
        start = self.position
        self.position += opening
        self._until(")")
        return Opaque(source=self.text[start : self.position])

    def _until(self, closing: str) -> str:
        """Return the text up to the `closing` that belongs to an opening before, and pass it."""
        start, depth = self.position, 0
        while self.position < len(self.text):
            balanced = _BALANCED.match(self.text, self.position)
            if balanced:
                self.position = balanced.end()
                continue
            if depth == 0 and self.text.startswith(closing, self.position):
                end = self.position
                self.position += len(closing)
                return self.text[start:end]
            character = self.text[self.position]
            depth = max(0, depth + (character == "(") - (character == ")"))
            self._pass_quoted(character)
        self.position = len(self.text)
        return self.text[start:]

    def _pass_quoted(self, character: str) -> None:
        """Pass one character, or what it quotes."""
        if character == "\\":
            self.position += 2
        elif character in "'\"`":
            end = self.text.find(character, self.position + 1)
            self.position = len(self.text) if end < 0 else end + 1
        else:
            self.position += 1


def _literal(text: str) -> Word:
    return Word(parts=(Literal(text=text),))
