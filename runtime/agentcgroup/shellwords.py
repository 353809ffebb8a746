"""Words and operators of a POSIX or bash command text, up to where both shells agree; nothing is expanded.

One pass, no backtracking over more than a character, nesting bounded: time is linear in the text. Anything that
bash and dash read differently, or that this reader does not follow, raises Unreadable: the caller keeps what it has.
Rules: POSIX.1-2024 Shell Command Language, 2.2 Quoting and 2.3 Token Recognition.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

MAX_DEPTH = 16
MAX_TOKENS = 1000  # the head of a text is what counts; this bounds the work for one of 16 KiB to some 10 ms

_BLANKS = re.compile(r"(?:[ \t]|\\\n)*")
_PLAIN = re.compile(r"[^\s\\'\"$`|&;()<>~:]+")
_IN_QUOTES = re.compile(r"[^\\\"$`]+")
_OPERATOR = re.compile(r"&&|\|\||;;&|;;|;&|<<<|<<-|<<|&>>|&>|<&|>&|<>|>\||>>|\|&|\(\(|[\n;&|()<>]")
_IO_NUMBER = re.compile(r"[0-9]{1,4}(?=[<>])")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=")
_PARAMETER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*|[0-9#*@!?$-]")
_CASE = re.compile(r"(?:case|esac)(?![A-Za-z0-9_])")
_SKIPPED = re.compile(r"[^\\'\"$`()#<c]+")


class Unreadable(Exception):
    """From here on the text is not followed."""


@dataclass(frozen=True)
class Word:
    """A word after quote removal. [start, end) is its place in the text; plain: no quoting and no expansion in it;
    expands: the shell would put something else in place of a part; assigns: it begins with an unquoted NAME=."""

    value: str
    start: int
    end: int
    plain: bool
    expands: bool
    assigns: bool


@dataclass(frozen=True)
class Operator:
    """A control or redirection operator; a newline is one."""

    text: str


def tokens(text: str) -> Iterator[Word | Operator]:
    """The tokens of `text` in order, comments left out. Raises Unreadable where it cannot go on."""
    reader = _Reader(text)
    for _ in range(MAX_TOKENS):
        if (token := reader.token()) is None:
            return
        yield token
    raise Unreadable("too many words")


class _Reader:
    """A position in the text; every method moves it forward only."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self.depth = 0

    def token(self) -> Word | Operator | None:
        self._match(_BLANKS)
        if self._peek() == "#":
            end = self.text.find("\n", self.at)
            self.at = len(self.text) if end < 0 else end
        self._match(_IO_NUMBER)
        if operator := self._match(_OPERATOR):
            if operator in ("<", ">") and self._peek() == "(":
                raise Unreadable("process substitution")
            return Operator(operator)
        return self._word() if self.at < len(self.text) else None

    def _word(self) -> Word:
        start, parts = self.at, list[str]()
        self.plain, self.expands = True, False
        while self.at < len(self.text) and (part := self._part(start, parts)) is not None:
            parts.append(part)
        if self.at < len(self.text) and self.text[self.at] in "<>" and self.text[self.at + 1 : self.at + 2] == "(":
            raise Unreadable("process substitution")
        assigns = _NAME.match(self.text[start : self.at].replace("\\\n", "")) is not None
        return Word("".join(parts), start, self.at, self.plain, self.expands, assigns)

    def _part(self, start: int, parts: list[str]) -> str | None:
        """The next piece of an unquoted stretch, or None at the end of the word."""
        if run := self._match(_PLAIN):
            return run
        char = self.text[self.at]
        if char in " \t\n|&;()<>":
            return None
        self.at += 1
        if char == "~":
            before = "".join(parts[-1:])
            self.expands |= self.at - 1 == start or before.endswith(("=", ":"))
        elif char in "\\'\"$`":
            self.plain = False
            return self._special(char)
        return char

    def _special(self, char: str) -> str:
        if char == "\\":
            return self._escaped()
        if char == "'":
            return self._until("'")
        if char == '"':
            return self._double()
        if char == "`":
            return self._backquote()
        if self._peek() == "'":
            self.at += 1
            if "\\" in self._until("'"):
                raise Unreadable("an escape in $'...', which dash reads differently")
            self.expands = True
            return ""
        return self._dollar(quoted=False)

    def _escaped(self) -> str:
        char = self._peek()
        self.at += 1
        return "" if char == "\n" else char or "\\"

    def _until(self, quote: str) -> str:
        end = self.text.find(quote, self.at)
        if end < 0:
            raise Unreadable(f"no closing {quote}")
        inner, self.at = self.text[self.at : end], end + 1
        return inner

    def _double(self) -> str:
        """What stands between double quotes; the opening one is behind us."""
        parts = list[str]()
        while char := self._peek():
            if run := self._match(_IN_QUOTES):
                parts.append(run)
                continue
            self.at += 1
            if char == '"':
                return "".join(parts)
            parts.append(self._in_double(char))
        raise Unreadable('no closing "')

    def _in_double(self, char: str) -> str:
        if char == "$":
            return self._dollar(quoted=True)
        if char == "`":
            return self._backquote()
        return self._escaped() if self._peek() and self._peek() in '$`"\\\n' else char

    def _backquote(self) -> str:
        self.expands = True
        while char := self._peek():
            self.at += 2 if char == "\\" else 1
            if char == "`":
                return ""
        raise Unreadable("no closing `")

    def _dollar(self, quoted: bool) -> str:
        """Passes over an expansion; its place in the value stays empty. A lone $ counts as one."""
        self.expands = True
        char = self._peek()
        if char == "{":
            self.at += 1
            self._nested(partial(self._brace, quoted))
        elif char == "(":
            self.at += 1
            self._nested(self._parentheses)
        elif char in ("[", "\\") or (char == '"' and not quoted):
            raise Unreadable(f"${char}")
        else:
            self._match(_PARAMETER)
        return ""

    def _nested(self, skip: Callable[[], None]) -> None:
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise Unreadable("nested too deep")
        skip()
        self.depth -= 1

    def _brace(self, quoted: bool) -> None:
        while char := self._peek():
            if quoted and (char == "'" or self.text.startswith("$'", self.at)):
                raise Unreadable("a quote whose meaning depends on the shell")
            self.at += 1
            if char == "}":
                return
            if char in "\\'\"$`":
                self._special(char)
        raise Unreadable("no closing }")

    def _parentheses(self) -> None:
        """Passes over the rest of $(...). Comments, here-documents and `case` may hold a lone ): not followed."""
        open_ones = 1
        while char := self._peek():
            if self._match(_SKIPPED):
                continue
            if char in "#<c" and self._odd(char):
                raise Unreadable("a comment, here-document or case in $(...)")
            self.at += 1
            if char in "\\'\"$`":
                self._special(char)
            open_ones += (char == "(") - (char == ")")
            if not open_ones:
                return
        raise Unreadable("no closing )")

    def _odd(self, char: str) -> bool:
        before = self.text[self.at - 1]
        if char == "#":
            return before in " \t\n;&|()"
        if char == "<":
            return self.text.startswith("<<", self.at)
        return not (before.isalnum() or before == "_") and _CASE.match(self.text, self.at) is not None

    def _peek(self) -> str:
        return self.text[self.at : self.at + 1]

    def _match(self, pattern: re.Pattern[str]) -> str:
        found = pattern.match(self.text, self.at)
        self.at = found.end() if found else self.at
        return found[0] if found else ""
