"""What needs no kernel of its own: layouts, and the words for what cannot be loaded."""

from __future__ import annotations

import ctypes
import re
from pathlib import Path

import pytest
from agentcgroup.bpf import libbpf, loader, model
from agentcgroup.errors import UserError

HEADER = (Path(__file__).resolve().parents[2] / "bpf" / "model.bpf.h").read_text()


@pytest.mark.parametrize("name", ["slot", "home", "usage", "refusal", "event"])
def test_the_layouts_are_those_of_the_header(name: str) -> None:
    (body,) = re.findall(rf"^struct {name} {{\n(.*?)^}};", HEADER, re.MULTILINE | re.DOTALL)
    fields = re.findall(r"^    (u64|u32|char|struct usage) (\w+)(?:\[(\d+)\])?;", body, re.MULTILINE)
    kinds = {"u64": ctypes.c_uint64, "u32": ctypes.c_uint32, "char": ctypes.c_char, "struct usage": model.Usage}
    layout = getattr(model, name.capitalize())
    assert [(n, kinds[k] * int(count) if count else kinds[k]) for k, n, count in fields] == list(layout._fields_)
    for size in re.findall(rf"sizeof\(struct {name}\) == (\d+)", HEADER):
        assert ctypes.sizeof(layout) == int(size)
    assert int(re.findall(r"MAX_ROOTS (\d+)", HEADER)[0]) == model.MAX_ROOTS


def test_a_library_that_is_too_old_or_missing_is_named_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(libbpf, "OLDEST", (99, 0))
    with pytest.raises(
        UserError, match=r"^(libbpf 1\.\d+ is too old: 99\.0 or newer|there is no libbpf\.so\.1: install)"
    ):
        libbpf.Libbpf()
    monkeypatch.setattr(ctypes, "CDLL", lambda *_a, **_k: (_ for _ in ()).throw(OSError("no")))
    with pytest.raises(UserError, match="^there is no libbpf.so.1: install libbpf1"):
        libbpf.Libbpf()


def test_objects_that_are_missing_are_named(tmp_path: Path) -> None:
    with pytest.raises(
        UserError, match=rf"^{tmp_path}/account.o: No such file or directory: `make install` puts it there"
    ):
        loader.build_of(tmp_path)
    for name in loader.OBJECTS:
        (tmp_path / f"{name}.o").write_bytes(b"1")
    assert re.fullmatch("[0-9a-f]{16}", loader.build_of(tmp_path))
    assert loader.loaded(tmp_path) == "" and not loader.detach(tmp_path / "none")
