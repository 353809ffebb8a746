"""The reader of leading assignments against bash and dash themselves, on generated quoting and on generated noise."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from agentcgroup.commandline import HINT_NAME, analyse
from hypothesis import given, settings
from hypothesis import strategies as st

MISSING = "<unset>"
FUNCTION = f"cmd() {{ printf '%s\\n' \"${{{HINT_NAME}-{MISSING}}}\" >> out; }}"

text_chars = st.text(st.sampled_from("ab:,=;2g \t\n#'\"\\&|()<>*?[]{}~!%$`-"), max_size=8)
plain_chars = st.text(st.sampled_from("abz:,=2g.%-_/"), min_size=1, max_size=6)
safe_in_double = text_chars.map(lambda text: "".join(f"\\{char}" if char in '\\$`"' else char for char in text))


def backslashed(text: str) -> str:
    return "".join(char if char in "\n" else f"\\{char}" for char in text.replace("\n", ""))


pieces = st.one_of(
    plain_chars,
    text_chars.map(lambda text: "'" + text.replace("'", "") + "'"),
    safe_in_double.map(lambda text: f'"{text}"'),
    text_chars.map(backslashed),
    st.just("\\\n"),
)
values = st.lists(pieces, max_size=5).map("".join)
names = st.sampled_from([HINT_NAME, HINT_NAME, "A", "b_1", f"X{HINT_NAME}", HINT_NAME[:-1]])
assignments = st.tuples(names, values).map("=".join)
gaps = st.sampled_from([" ", "  ", "\t", " \\\n ", " 2>/dev/null ", " </dev/null "])
leads = st.sampled_from(["", " ", "\n", "# note\n", ": && ", "cd . && ", "export Z=1; ", "cd . || exit; ", "time "])


@st.composite
def commands(draw: st.DrawFn) -> str:
    given_ones = draw(st.lists(assignments, max_size=4))
    style = draw(st.sampled_from(["", "export", "statement"]))
    gap = draw(gaps)
    if style == "statement" and given_ones:
        body = gap.join(given_ones) + draw(st.sampled_from(["; ", "\n", " && "]))
    elif style == "export" and given_ones:
        body = " ".join(["export", *given_ones]) + "; "
    else:
        body = "".join(word + gap for word in given_ones)
    return draw(leads) + body + "cmd"


def seen_by(shell: str, text: str, directory: Path) -> list[str]:
    """What `cmd` saw in the variable, once for each time it ran; the function is defined by a text of its own."""
    out = directory / "out"
    out.unlink(missing_ok=True)
    environment = {"PATH": "/nonexistent", "BASH_ENV": "/nonexistent"}
    argv = [str(shutil.which(shell)), "-c", f'{FUNCTION}\neval "$0"', text]
    subprocess.run(argv, cwd=directory, env=environment, capture_output=True, timeout=20, check=False)
    return out.read_text("utf-8", "surrogateescape").split("\n")[:-1] if out.exists() else []


@pytest.mark.parametrize("shell", ["bash", "dash"])
def test_generated_quoting_is_read_as_the_shell_reads_it(shell: str, tmp_path: Path) -> None:
    @settings(max_examples=int(os.environ.get("EXAMPLES", "150")))
    @given(commands())
    def compare(text: str) -> None:
        if shell == "dash" and text.startswith("time "):
            return
        found = analyse([shell, "-c", text], False)
        seen = "\n".join(seen_by(shell, text, tmp_path))
        assert found.first_word == "cmd"
        if not found.problems:
            assert (found.hint if found.hint is not None else MISSING) == seen

    compare()


noise = st.lists(
    st.one_of(
        st.sampled_from(
            [
                f"{HINT_NAME}=", "A=", "x", "2g", "=", ":", " ", " ", "\n", ";", "&&", "||", "|", "&", "'", '"', "\\",
                "$", "`", "$(", ")", "${A-", "}", "#", "~", "cmd", " cmd ", "cmd;", "export ", "env ", "!", "{ ", "( ",
                "$'", "<<", "case", " : ", "cd .", "if ", "then ", "fi", "[[ ", " ]]", "((", "2", "é", "A=(", "time ",
            ]
        ),
        plain_chars,
    ),
    max_size=14,
).map("".join)  # fmt: skip


@pytest.mark.parametrize("shell", ["bash", "dash"])
def test_no_noise_makes_up_a_hint(shell: str, tmp_path: Path) -> None:
    """Whatever is reported as the hint is what the shell gave to the first `cmd` that ran, if one ran."""

    @settings(max_examples=int(os.environ.get("EXAMPLES", "150")))
    @given(noise)
    def compare(text: str) -> None:
        found = analyse([shell, "-c", f"{text} cmd"], False)
        if found.hint is None or found.first_word != "cmd":
            return
        seen = seen_by(shell, f"{text} cmd", tmp_path)
        assert not seen or "\n".join(seen).startswith(found.hint)

    compare()


@settings(max_examples=500)
@given(st.lists(st.text(max_size=30), max_size=6), st.booleans())
def test_no_argv_raises(argv: list[str], truncated: bool) -> None:
    found = analyse(argv, truncated)
    assert found.kind in ("command", "script", "shell")
    start, end = found.hint_span or (0, 0)
    assert 0 <= start <= end <= len(found.text)


@settings(max_examples=500)
@given(noise)
def test_reading_a_text_gives_words_that_are_safe_to_show(text: str) -> None:
    found = analyse(["sh", "-c", text], False)
    for word in (found.first_word, found.command_class):
        assert word and word.isascii() and word.isprintable() and len(word) <= 96
