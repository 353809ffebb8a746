"""Regular expressions of Go (RE2) as Python's, for what engines match with them. https://pkg.go.dev/regexp/syntax"""

from __future__ import annotations

import functools
import re


class InvalidRegex(ValueError):
    """Go's regexp would not compile it."""


class UntranslatedRegex(ValueError):
    """RE2 knows it, and Python has nothing like it."""


@functools.cache
def compile_re2(source: str) -> re.Pattern[str]:
    """A Python pattern whose `search` finds a match where Go's regexp.MatchString does. Which text it finds may differ,
    as greed makes no difference to that. Raises InvalidRegex and UntranslatedRegex. https://pkg.go.dev/regexp/syntax
    """
    try:
        return re.compile(_Translation(source).text)
    except RecursionError:
        raise InvalidRegex("it is nested too deeply") from None


_MAX_REPEAT = 1000
_REPEAT = re.compile(r"(?:[*+?]|\{(0|[1-9][0-9]*)(?:(,)(0|[1-9][0-9]*)?)?\})\??")
_FLAGS = re.compile(r"\?([imsU]*)(?:-([imsU]+))?([:)])")
_NAME = re.compile(r"\?P?<(\w+)>", re.ASCII)
_POSIX = re.compile(r"\[:(\^?)(.*?):\]", re.DOTALL)
_HEX = re.compile(r"x(?:\{([0-9A-Fa-f]+)\}|([0-9A-Fa-f]{2}))")
_OCTAL = re.compile(r"0[0-7]{0,2}|[1-7][0-7]{1,2}")
_CONTROL = dict(zip("afnrtv", "\a\f\n\r\t\v", strict=True))
# `$` without (?m) is the end of the text, before no newline; \b knows ASCII words only. Each is a group, so that it
# can be repeated.
_ASSERTIONS = {"A": r"(?:\A)", "z": r"(?:\Z)", "b": r"(?a:\b)", "B": r"(?!(?a:\b))"}
# pairs of first and last
_CLASSES = {
    "alnum": "09AZaz", "alpha": "AZaz", "ascii": "\0\x7f", "blank": "\t\t  ", "cntrl": "\0\x1f\x7f\x7f", "digit": "09",
    "graph": "!~", "lower": "az", "print": " ~", "punct": "!/:@[`{~", "space": "\t\r  ", "upper": "AZ",
    "word": "09AZ__az", "xdigit": "09AFaf",
    "d": "09", "s": "\t\n\f\r  ", "w": "09AZ__az",
}  # fmt: skip
_LACKING = {
    "?=": "lookahead", "?!": "lookahead", "?<=": "lookbehind", "?<!": "lookbehind", "?>": "atomic group",
    "?#": "comment", "?(": "condition", "?P=": "backreference", "?P>": "call of a group",
}  # fmt: skip

_Ranges = list[tuple[int, int]]
_Atom = tuple[str, int]  # Python's text, and how often its innermost part is counted out


class _Translation:
    """One expression, read once from left to right. Flags are written at each atom, not where they are set."""

    def __init__(self, source: str) -> None:
        self.source = source
        self.at = 0
        self.flags: frozenset[str] = frozenset()
        self.names: set[str] = set()
        self.text, _ = self._alternatives()
        if self.at < len(source):
            raise InvalidRegex('")" closes nothing')

    def _sees(self, text: str) -> bool:
        return self.source.startswith(text, self.at)

    def _take(self, text: str) -> bool:
        found = self._sees(text)
        self.at += len(text) * found
        return found

    def _takes(self, pattern: re.Pattern[str]) -> re.Match[str] | None:
        found = pattern.match(self.source, self.at)
        self.at = found.end() if found else self.at
        return found

    def _alternatives(self) -> _Atom:
        """Up to the end of the group, with which flags end that were set in it."""
        flags = self.flags
        branches = [self._sequence()]
        while self._take("|"):
            branches.append(self._sequence())
        self.flags = flags
        return "|".join(text for text, _ in branches), max(count for _, count in branches)

    def _sequence(self) -> _Atom:
        atoms: list[_Atom] = []
        repeated = ""
        while self.at < len(self.source) and self.source[self.at] not in "|)":
            repeat = self._takes(_REPEAT)
            if not repeat:
                atoms += self._atoms()
                repeated = ""
                continue
            if not atoms:
                raise InvalidRegex(f'"{repeat[0]}" repeats nothing')
            if repeated:
                raise InvalidRegex(f'"{repeated}{repeat[0]}" repeats a repetition')
            repeated = repeat[0]
            atoms[-1] = _repeat(*atoms[-1], repeat)
        return "".join(text for text, _ in atoms), max((count for _, count in atoms), default=1)

    def _atoms(self) -> list[_Atom]:
        char = self.source[self.at]
        self.at += 1
        if char == "(":
            return self._group()
        if char == "[":
            return [(self._bracket(), 1)]
        if char == "\\":
            return self._escaped()
        if char == ".":
            return [("(?s:.)" if "s" in self.flags else ".", 1)]
        if char in "^$":
            line, text = ("(?m:^)", "A") if char == "^" else ("(?m:$)", "z")
            return [(line if "m" in self.flags else _ASSERTIONS[text], 1)]
        return [self._literal(char)]

    def _literal(self, char: str) -> _Atom:
        return (f"(?i:{re.escape(char)})" if "i" in self.flags else re.escape(char)), 1

    def _group(self) -> list[_Atom]:
        flags = self.flags
        if self._sees("?"):
            name = self._takes(_NAME)
            if name and name[1] in self.names:
                raise InvalidRegex(f"two groups are called {name[1]}")
            self.names.update({name[1]} if name else ())
            if not name and self._set_flags() == ")":
                return []
        text, count = self._alternatives()
        self.flags = flags
        if not self._take(")"):
            raise InvalidRegex('a "(" is not closed')
        return [(f"(?:{text})", count)]

    def _set_flags(self) -> str:
        """What ends the flags: ":" with a group to come, or ")"."""
        found = self._takes(_FLAGS)
        if found:
            self.flags = (self.flags | set(found[1])) - set(found[2] or "")
            return found[3]
        lacking = next((what for start, what in _LACKING.items() if self._sees(start)), "such group")
        raise InvalidRegex(f'RE2 has no {lacking}: "({self.source[self.at :][:3]}"')

    def _escaped(self) -> list[_Atom]:
        char = self.source[self.at : self.at + 1]
        if char in _ASSERTIONS:
            self.at += 1
            return [(_ASSERTIONS[char], 1)]
        if self._take("Q"):
            literal, _, _ = self.source[self.at :].partition("\\E")
            self.at = min(self.at + len(literal) + 2, len(self.source))
            return [self._literal(char) for char in literal]
        ranges = self._perl_class()
        return [(self._any_of(ranges), 1)] if ranges else [self._literal(self._escape())]

    def _perl_class(self) -> _Ranges:
        """The characters of \\d, \\S and the like, none if this is another escape: the backslash is taken."""
        char = self.source[self.at : self.at + 1]
        if char and char in "pP":
            raise UntranslatedRegex(f"\\{char} is not understood here, so the engine may match where this says no")
        if not char or char not in "dswDSW":
            return []
        self.at += 1
        return self._named(char.lower(), char.isupper())

    def _escape(self) -> str:
        """One character after its backslash."""
        if self.at == len(self.source):
            raise InvalidRegex("it ends with a backslash")
        if digits := self._takes(_HEX):
            code = int(digits[1] or digits[2], 16)
            if code <= 0x10FFFF:
                return chr(code)
            raise InvalidRegex(f"\\{digits[0]} is no character")
        if octal := self._takes(_OCTAL):
            return chr(int(octal[0], 8))
        char = self.source[self.at]
        self.at += 1
        if char in _CONTROL or (char.isascii() and not char.isalnum()):
            return _CONTROL.get(char, char)
        raise InvalidRegex(f"RE2 has no {'backreference ' if char in '123456789' else ''}\\{char}")

    def _bracket(self) -> str:
        negated = self._take("^")
        ranges: _Ranges = []
        while not ranges or not self._sees("]"):
            ranges += self._named_class() or self._range()
        self.at += 1
        return self._any_of(ranges, "^" if negated else "")

    def _named_class(self) -> _Ranges:
        """[:alpha:] and \\d, or nothing."""
        if found := self._takes(_POSIX):
            if len(found[2]) < 2 or found[2] not in _CLASSES:
                raise InvalidRegex(f"RE2 has no class {found[0]}")
            return self._named(found[2], bool(found[1]))
        start = self.at
        if self._take("\\") and (ranges := self._perl_class()):
            return ranges
        self.at = start
        return []

    def _named(self, name: str, negated: bool) -> _Ranges:
        """A class by name. Where case does not count, k and s have a third form: the Kelvin sign and the long s."""
        folds = "i" in self.flags
        ranges = _ranges("alpha" if folds and name in ("lower", "upper") else name)
        return _complement(ranges + [(0x17F, 0x17F), (0x212A, 0x212A)] * folds) if negated else ranges

    def _range(self) -> _Ranges:
        start = self.at
        low = high = self._bracket_char()
        if self._sees("-") and self.source[self.at + 1 : self.at + 2] not in ("", "]"):
            self.at += 1
            high = self._bracket_char()
        if high < low:
            raise InvalidRegex(f'"{self.source[start : self.at]}" is no range')
        return [(ord(low), ord(high))]

    def _bracket_char(self) -> str:
        if self.at == len(self.source):
            raise InvalidRegex('a "[" is not closed')
        char = self.source[self.at]
        self.at += 1
        return self._escape() if char == "\\" else char

    def _any_of(self, ranges: _Ranges, negation: str = "") -> str:
        inside = "".join(f"\\U{low:08x}-\\U{high:08x}" for low, high in ranges)
        return f"(?{'i' if 'i' in self.flags else ''}:[{negation}{inside}])"


def _repeat(text: str, count: int, repeat: re.Match[str]) -> _Atom:
    """An atom with its repetition, of which RE2 counts out no more than 1000, nested ones multiplied."""
    least, comma, most = repeat[1], repeat[2], repeat[3]
    if least is None:
        return f"(?:{text}){repeat[0][0]}", count
    bounds = [int(number[:5]) for number in (least, most) if number]
    times = bounds[-1] if comma is None or most else bounds[0]
    if max(*bounds, times, times * count) > _MAX_REPEAT or bounds != sorted(bounds):
        raise InvalidRegex(f'"{repeat[0]}" is no valid count: RE2 takes up to {_MAX_REPEAT}')
    return f"(?:{text}){repeat[0].removesuffix('?')}", max(1, times * count)


def _ranges(name: str) -> _Ranges:
    pairs = _CLASSES[name]
    return [(ord(low), ord(high)) for low, high in zip(pairs[::2], pairs[1::2], strict=True)]


def _complement(ranges: _Ranges) -> _Ranges:
    """All other characters; `ranges` is in order."""
    starts = [0, *(high + 1 for _, high in ranges)]
    ends = [*(low - 1 for low, _ in ranges), 0x10FFFF]
    return [(start, end) for start, end in zip(starts, ends, strict=True) if start <= end]
