"""Regular expressions: slow ones are refused, ordinary ones are not."""

import re
import time

import pytest
from agentcgroup.errors import UserError
from agentcgroup.policy.model import MATCH_CHARS
from agentcgroup.policy.patterns import compiled

EXPONENTIAL = [
    "(a+)+b",
    "(a|aa)*b",
    "(a?){30}a{30}",
    r"(?:-\w+\s+)*x",
    "(?:a*){5}b",
    "((a|b|ab)c?)+$",
    "(?:(?:a+)b)*",
    "(?=(a+)+)x",
]
POLYNOMIAL = [
    "a.*b.*c",
    ".*foo.*bar",
    r"\w+x\w+",
    r"\S+=\S+",
    "curl.{0,400}sh.{0,400}x",
    "(?m)^.*a.*",
    r".{0,50}\s+\b",
    r"\w+.*+ ^x",
]
HARMLESS = [
    "make", "foo.*bar", r"curl.{0,200}\|.{0,100}sh", r"\bnpx\s+(?:-y\s+|--yes\s+)?@scope/", "^git (pull|push|fetch)",
    "(?:foo|bar)+", "(?i:make)", r"(?P<n>x)(?P=n)", r"^(exec )?(\S{0,120}/)?name( |$)", "a{3}", "(?>a+)b", "a++b",
    "^(?:.*)x$", "(a)(?(1)b|c)", "(?!x)y", r"^\s*make",
]  # fmt: skip


@pytest.mark.parametrize("text", EXPONENTIAL)
def test_a_repeat_inside_a_repeat_is_refused(text: str) -> None:
    with pytest.raises(UserError) as error:
        compiled(text)
    assert str(error.value) == f'"{text}" could run for minutes on a hostile text: take the inner repeat out'


@pytest.mark.parametrize("text", POLYNOMIAL)
def test_repeats_that_multiply_are_refused(text: str) -> None:
    with pytest.raises(UserError) as error:
        compiled(text)
    assert str(error.value) == f'"{text}" could run for seconds on a hostile text: write .{{0,99}} for .*, and so on'


@pytest.mark.parametrize("text", HARMLESS)
def test_ordinary_patterns_are_taken_and_are_quick(text: str) -> None:
    pattern = compiled(text)
    assert pattern == re.compile(text)
    for piece in ("a", " ", "/", "foo", "curl|", "npx -y ", "\n", "x y"):
        start = time.process_time()
        pattern.search((piece * MATCH_CHARS)[:MATCH_CHARS])
        assert time.process_time() - start < 1.0


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("(", "missing ), unterminated subpattern at position 0"),
        ("a**", "multiple repeat at position 2"),
        ("[[a]", "Possible nested set at position 1"),
        ("a{99999999999}", "the repetition number is too large"),
        (r"\y", r"bad escape \y at position 0"),
    ],
)
def test_what_is_no_pattern(text: str, cause: str) -> None:
    with pytest.raises(UserError) as error:
        compiled(text)
    assert str(error.value) == f'"{text}" is not a regular expression: {cause}: escape or mend it'
