"""Sizes and durations: what is taken, what is refused and in which words, and that what is printed can be read."""

import pytest
from agentcgroup.errors import UserError
from agentcgroup.units import MAX_BYTES, format_bytes, format_seconds, parse_duration, parse_size, quoted
from hypothesis import given
from hypothesis import strategies as st

KIB, MIB, GIB, TIB, PIB = (1024**power for power in range(1, 6))


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("0", 0), ("4096", 4096), (4096, 4096), ("4096B", 4096), ("1K", KIB), ("1KB", KIB), ("1KiB", KIB),
        ("512M", 512 * MIB), ("512MiB", 512 * MIB), ("1.5G", 3 * GIB // 2), ("1.5 GiB", 3 * GIB // 2),
        (" 2G ", 2 * GIB), ("08G", 8 * GIB), ("2T", 2 * TIB), ("3P", 3 * PIB), ("0.1K", 102),
        (str(MAX_BYTES), MAX_BYTES),
    ],
)  # fmt: skip
def test_sizes_of_systemd_and_with_iB(text: str | int, count: int) -> None:
    assert parse_size(text) == count


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("2g", '"2g" is not a size: write 2G'),
        ("2gib", '"2gib" is not a size: write 2GiB'),
        ("512mb", '"512mb" is not a size: write 512MB'),
        ("max", '"max" is not a size: write none where no limit is wanted'),
        ("-1", '"-1" is not a size: write none where no limit is wanted'),
        ("", '"" is not a size: write one such as 512M or 2GiB'),
        ("1,5G", '"1,5G" is not a size: write one such as 512M or 2GiB'),
        ("1e9", '"1e9" is not a size: write one such as 512M or 2GiB'),
        ("2G 512M", '"2G 512M" is not a size: write one such as 512M or 2GiB'),
        ("\u0663G", '"\u0663G" is not a size: write one such as 512M or 2GiB'),  # a digit, but not an ASCII one
        (-1, "-1 is not a size: write one such as 512M or 2GiB"),
        (True, "True is not a size: write one such as 512M or 2GiB"),
        ("8192P", '"8192P" is larger than any memory: write a smaller size'),
        (MAX_BYTES + 1, '"9223372036854775808" is larger than any memory: write a smaller size'),
        ("9" * 65, f'"{"9" * 61}..." is not a size: write one such as 512M or 2GiB'),
    ],
)
def test_what_is_no_size(text: str | int, message: str) -> None:
    with pytest.raises(UserError) as error:
        parse_size(text)
    assert str(error.value) == message


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90", 90), ("90s", 90), ("5min", 300), ("5m", 300), ("1h30m", 5400), ("1h 30min", 5400), ("250ms", 0.25),
        ("100us", 0.0001), ("1.5h", 5400), ("2d", 172800), ("0", 0), (90, 90), (0.5, 0.5), ("1min 1s 1ms", 61.001),
        ("2 hours", 7200),
    ],
)  # fmt: skip
def test_durations_of_systemd(text: str | int | float, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize(
    "text", ["", "s", "90 parsecs", "-5s", "5 min 3", "1:30", "1h-30m", "90S", "1e3", "\u0663s", "9" * 65, True]
)
def test_what_is_no_duration(text: str | bool) -> None:
    with pytest.raises(UserError, match="is not a duration: write one such as 90s, 5min or 1h30m$"):
        parse_duration(text)


def test_a_duration_has_an_upper_bound() -> None:
    with pytest.raises(UserError) as error:
        parse_duration("367d")
    assert str(error.value) == '"367d" is longer than a year: write a shorter duration'


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"), (1023, "1023 B"), (1024, "1 KiB"), (256 * MIB, "256 MiB"), (3 * GIB // 2, "1.5 GiB"),
        (GIB - 1, "1 GiB"), (-MIB, "-1 MiB"), (MAX_BYTES, "8192 PiB"), (4187593114, "3.9 GiB"),
    ],
)  # fmt: skip
def test_bytes_for_people(count: int, text: str) -> None:
    assert format_bytes(count) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"), (0.25, "250 ms"), (0.9994, "999 ms"), (0.9996, "1 s"), (12.34, "12.3 s"), (90, "90 s"),
        (119.96, "2 min"), (125, "2 min 5 s"), (300, "5 min"), (3599.7, "1 h"), (5400, "1 h 30 min"),
        (86400, "24 h"), (3 * 86400 + 7200, "3 d 2 h"), (-1.5, "-1.5 s"),
    ],
)  # fmt: skip
def test_seconds_for_people(seconds: float, text: str) -> None:
    assert format_seconds(seconds) == text


def test_a_quoted_text_cannot_reach_a_terminal_or_fill_a_journal() -> None:
    assert quoted("a\x1b[2J\nb") == '"a?[2J?b"'
    assert quoted("x" * 70) == f'"{"x" * 61}..."'


@given(st.integers(0, MAX_BYTES))
def test_a_number_of_bytes_reads_as_itself(count: int) -> None:
    assert parse_size(count) == parse_size(str(count)) == parse_size(f"{count} B") == count


@given(st.integers(0, 2**62))
def test_a_printed_size_reads_as_nearly_itself(count: int) -> None:
    assert parse_size(format_bytes(count)) == pytest.approx(count, rel=0.05)


@given(st.floats(0, 300 * 86400.0))
def test_a_printed_duration_reads_as_nearly_itself(seconds: float) -> None:
    assert parse_duration(format_seconds(seconds)) == pytest.approx(seconds, rel=0.05, abs=0.001)


@given(st.text(max_size=80) | st.from_regex(r"[0-9. ]{1,8}[KMGTPiBhmsd%]{0,3}", fullmatch=True))
def test_any_text_is_read_or_refused_with_advice(text: str) -> None:
    for parse, most in ((parse_size, MAX_BYTES), (parse_duration, 366 * 86400)):
        try:
            assert 0 <= parse(text) <= most
        except UserError as error:
            assert ": write " in str(error)
            assert "\n" not in str(error)
