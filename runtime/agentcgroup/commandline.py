"""What a shell was asked to run, read from its argv as text: nothing is executed, expanded or looked up.

The text comes from inside a container: at most MAX_TEXT characters are read, in linear time, and nothing raises.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from agentcgroup import commandclass
from agentcgroup.shellwords import Operator, Unreadable, Word, tokens

MAX_TEXT = 16384
HINT_NAME = "AGENT_RESOURCE_HINT"
OTHER = "other"

Kind = Literal["command", "script", "shell"]


def _set(words: str) -> frozenset[str]:
    return frozenset(words.split())


_EXPANDS = f"{HINT_NAME} holds an expansion, which is not evaluated: write the value itself"
_CUT = f"{HINT_NAME} stands where the command text was cut: put it first"
_UNCLEAR = f"{HINT_NAME} stands in shell text that is not followed: put it first"

# bash's long options; it takes them with one dash too, and only before the short ones (shell.c, parse_long_options).
_LONG = _set(
    "debug debugger dump-po-strings dump-strings help login noediting noprofile norc posix pretty-print protected"
    " restricted verbose version wordexp"
)
_LONG_WITH_FILE = _set("init-file rcfile")

_REDIRECTS = _set("< > >> >| <> <& >& &> &>> <<<")
_RESERVED = _set("! { } if then elif else fi while until do done")
# Commands that prepare the real one when something ends them; what follows is looked at instead.
_SETUP = _set(
    ". : [ [[ cd declare echo exit export false for popd printf pushd set shopt source test trap true ulimit umask"
    " unset"
)
_FED_BY = _set("echo printf")
_SUBSHELL = _set("| |& & )")  # an assignment that such an operator ends does not last

# Commands that run another one: options that take a value, words before the command, options that make them no prefix.
_PREFIXES: dict[str, tuple[frozenset[str], int, frozenset[str]]] = {
    name: (_set(options), count, _set(stops))
    for name, options, count, stops in (
        ("builtin", "", 0, ""),
        ("command", "", 0, "-v -V"),
        ("doas", "-u -C", 0, "-L"),
        ("env", "-u -C --unset --chdir", 0, "-S"),
        ("exec", "-a", 0, ""),
        ("ionice", "-c -n --class --classdata", 0, "-p --pid"),
        ("nice", "-n --adjustment", 0, ""),
        ("nohup", "", 0, ""),
        ("setsid", "", 0, ""),
        ("stdbuf", "-i -o -e --input --output --error", 0, ""),
        ("sudo", "-u -g -h -p -C -D -R -T -U -r -t --user --group", 0, "-l -v -e"),
        ("time", "-f -o --format --output", 0, ""),
        ("timeout", "-s -k --signal --kill-after", 1, ""),
    )
}
_TAKES_ASSIGNMENTS = _set("doas env sudo")
_ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=")
_SAFE_WORD = re.compile(r"[A-Za-z0-9._+-]{1,64}")


@dataclass(frozen=True)
class Command:
    """A tool call's command line.

    kind: `command` (-c), `script` (a file), `shell` (interactive or fed by stdin). text: the command text or the
    script's path. first_word: basename of the first real command, or `other`. hint: the value of its leading
    AGENT_RESOURCE_HINT assignment; problems: why that was not used. command_class: key under which peaks are learned.
    hint_span: where the assignment stands in the text.
    """

    kind: Kind
    text: str = ""
    first_word: str = OTHER
    command_class: str = OTHER
    hint: str | None = None
    problems: tuple[str, ...] = ()
    hint_span: tuple[int, int] | None = None

    @property
    def bare(self) -> str:
        """The text without the hint: equal for the same command run under another hint."""
        start, end = self.hint_span or (0, 0)
        return (self.text[:start] + self.text[end:].lstrip(" \t")).strip()

    def with_hint(self, value: str) -> str:
        """The text with the hint `value` in the place of its old one, or before everything else."""
        start, end = self.hint_span or (0, 0)
        gap = "" if self.hint_span else " "
        return f"{self.text[:start]}{HINT_NAME}={value}{gap}{self.text[end:]}"


def analyse(argv: Sequence[str], truncated: bool) -> Command:
    """The command line behind a shell's `argv`; `truncated` says that argv was cut at its end. Never raises."""
    arguments = list(argv[1:])
    wants_text, reads_stdin, at = _options(arguments)
    rest = arguments[at:]
    if wants_text:
        text = rest[0] if rest else ""
        return _analyse_text(text[:MAX_TEXT], (truncated and len(rest) <= 1) or len(text) > MAX_TEXT)
    if rest and not reads_stdin:
        first = _safe(rest[0])
        return Command("script", rest[0][:MAX_TEXT], first, first)
    return Command("shell")


def _options(arguments: list[str]) -> tuple[bool, bool, int]:
    """Whether -c and -s are among the options, and how many arguments the options are (bash's and dash's rules)."""
    at = _long_options(arguments)
    letters = set[str]()
    while at < len(arguments) and arguments[at][:1] in ("-", "+"):
        option = arguments[at]
        at += 1
        if option in ("-", "--"):
            break
        letters.update(option[1:])
        at += option.count("o") + option.count("O")  # each takes the next argument, wherever it stands in the cluster
    return "c" in letters, "s" in letters, at


def _long_options(arguments: list[str]) -> int:
    at = 0
    while at < len(arguments) and arguments[at].startswith("-"):
        name = arguments[at].removeprefix("-").removeprefix("-")
        if name not in _LONG and name not in _LONG_WITH_FILE:
            break
        at += 2 if name in _LONG_WITH_FILE else 1
    return at


@dataclass
class _Statement:
    """A simple command: `words` without assignments and redirections, and the operator that ends it."""

    assignments: list[Word] = field(default_factory=list)
    words: list[Word] = field(default_factory=list)
    end: str = ""
    readable: bool = True

    @property
    def in_test(self) -> bool:
        """Whether this is a [[ ]] that is still open: what looks like an operator in it is none."""
        return bool(self.words) and self.words[0].value == "[[" and self.words[-1].value != "]]"

    def stop_at(self, operator: str) -> None:
        """Ends at a control operator. Raises Unreadable at one that makes the words something else."""
        if operator in ("<<", "<<-"):
            raise Unreadable("a here-document")
        if operator in ("(", "(("):
            self.words.clear()
            raise Unreadable("a function, an array or arithmetic")
        self.end = operator


def _analyse_text(text: str, cut: bool) -> Command:
    """The command whose -c text is `text`, of which the end is missing if `cut`."""
    assignment, words, clear = _scan(text)
    command = Command("command", text)
    if words and not (cut and words[-1].end == len(text) and len(words) == 1):
        values = ["" if word.expands else word.value for word in words]
        command = replace(command, first_word=_safe(values[0]), command_class=commandclass.of(values, cut))
    if assignment is None:
        return command
    command = replace(command, hint_span=(assignment.start, assignment.end))
    for bad, problem in (
        (assignment.expands, _EXPANDS), (cut and assignment.end == len(text), _CUT), (not clear, _UNCLEAR)
    ):  # fmt: skip
        if bad:
            return replace(command, problems=(problem,))
    return replace(command, hint=assignment.value.partition("=")[2])


def _scan(text: str) -> tuple[Word | None, list[Word], bool]:
    """The hint's assignment in force at the first real command, that command's words, and whether all was followed."""
    stream = tokens(text)
    hint: Word | None = None
    command: list[Word] = []
    skip = False
    while True:
        statement = _statement(stream)
        words, passed = _strip_prefixes(statement.words)
        given = [word for word in (*statement.assignments, *passed, *_exported(words)) if _is_hint(word)]
        lost = statement.end in _SUBSHELL and (not words or words[0].value == "export")
        hint = given[-1] if given and not skip and not lost else hint
        command = words if words and not skip else command
        if not statement.readable or not statement.end or (words and not skip and not _prepares(words, statement.end)):
            return hint, command, statement.readable or bool(words)
        skip = statement.end == "||" and bool(words)


def _statement(stream: Iterator[Word | Operator]) -> _Statement:
    """The next simple command; reserved words and ( in front of it are passed over."""
    found = _Statement()
    try:
        while token := next(stream, None):
            if isinstance(token, Word):
                _take(found, token)
            elif found.in_test or (token.text == "(" and not found.words and not found.assignments):
                continue
            elif token.text in _REDIRECTS:
                if not isinstance(next(stream, None), Word):
                    raise Unreadable("a redirection without a target")
            else:
                found.stop_at(token.text)
                break
    except Unreadable:
        found.readable = False
    return found


def _take(found: _Statement, word: Word) -> None:
    # `time [-p]` is a reserved word of bash: assignments and other reserved words may follow it.
    first = len(found.words) < 3 and all(before.value in ("time", "-p") for before in found.words)
    if word.assigns and first:
        found.words.clear()
        found.assignments.append(word)
    elif not (word.plain and word.value in _RESERVED and first and not found.assignments):
        found.words.append(word)


def _strip_prefixes(words: list[Word]) -> tuple[list[Word], list[Word]]:
    """The words without sudo, env, timeout and the like in front, and the assignments that those were given."""
    passed: list[Word] = []
    start = 0
    while start < len(words) and (prefix := _PREFIXES.get(name := _base(words[start].value))):
        with_value, positional, stops = prefix
        at = start + 1
        while at < len(words) and words[at].value.startswith("-") and words[at].value not in stops:
            at += 2 if words[at].value in with_value else 1
        at += positional
        while name in _TAKES_ASSIGNMENTS and at < len(words) and _ASSIGNMENT.match(words[at].value):
            passed.append(words[at])
            at += 1
        if at >= len(words) or words[at].value in stops:
            break
        start = at
    return words[start:], passed


def _exported(words: list[Word]) -> list[Word]:
    return words[1:] if words and words[0].value == "export" else []


def _is_hint(word: Word) -> bool:
    return word.value.startswith(f"{HINT_NAME}=")


def _prepares(words: list[Word], end: str) -> bool:
    """Whether the real command comes only after this one."""
    name = words[0].value
    return name in _SETUP and (end in ("&&", "||", ";", "\n") or (end == "|" and name in _FED_BY))


def _base(value: str) -> str:
    return value.rpartition("/")[2]


def _safe(value: str) -> str:
    name = _base(value)
    return name if _SAFE_WORD.fullmatch(name) else OTHER
