"""The shim's messages are bytes from inside a container: whatever they hold, reading them raises nothing."""

from agentcgroup.request import MAX_MESSAGE, parse
from hypothesis import given
from hypothesis import strategies as st


def test_a_start_message_gives_ticket_hint_and_argv() -> None:
    request = parse(b"AGC1\0t=7\0h=memory:2g\0a=bash\0a=-c\0a=x=1 y\n\0")
    assert request is not None
    assert (request.ticket, request.hint, request.argv) == (7, "memory:2g", ["bash", "-c", "x=1 y\n"])
    assert not request.truncated


def test_end_move_signal_and_hint_messages() -> None:
    assert parse(b"AGC1\0e=256\0").end == 256  # type: ignore[union-attr]
    assert parse(b"AGC1\0m=12\0").move == 12  # type: ignore[union-attr]
    assert parse(b"AGC1\0s=15\0").signal == 15  # type: ignore[union-attr]
    assert parse(b"AGC1\0n=memory:2g\0").ask_hint == "memory:2g"  # type: ignore[union-attr]


def test_what_is_no_message_is_refused() -> None:
    assert parse(b"") is None
    assert parse(b"GET / HTTP/1.1") is None
    assert parse(b"AGC1\0a=" + b"x" * MAX_MESSAGE) is None
    assert parse(b"AGC1\0" + b"a=\0" * 5000) is None


def test_numbers_that_are_none_are_absent() -> None:
    request = parse(b"AGC1\0t=-1\0e=99999999999\0m=0x1\0s=\0")
    assert request is not None
    assert (request.ticket, request.end, request.move, request.signal) == (-1, -1, -1, -1)


def test_invalid_utf8_in_a_command_is_kept() -> None:
    request = parse(b"AGC1\0t=1\0a=bash\0a=-c\0a=\xff\xfe\0")
    assert request is not None
    assert request.argv[2].encode(errors="surrogateescape") == b"\xff\xfe"


@given(st.binary(max_size=4096))
def test_any_bytes_are_read_without_an_exception(message: bytes) -> None:
    parse(message)
    parse(b"AGC1\0" + message)
