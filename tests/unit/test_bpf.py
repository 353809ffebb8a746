"""What needs no kernel of its own: layouts, and the words for what cannot be loaded."""

from __future__ import annotations

import ctypes
import re
import struct
from pathlib import Path

import pytest
from agentcgroup.bpf import libbpf, loader, memcg_ops, model
from agentcgroup.errors import UserError

HEADER = (Path(__file__).resolve().parents[2] / "bpf" / "model.bpf.h").read_text()


@pytest.mark.parametrize("name", ["slot", "share", "home", "usage", "refusal", "event", "ejection"])
def test_the_layouts_are_those_of_the_header(name: str) -> None:
    (body,) = re.findall(rf"^struct {name} {{\n(.*?)^}};", HEADER, re.MULTILINE | re.DOTALL)
    fields = re.findall(r"^    (u64|u32|s64|char|struct usage|struct share) (\w+)(?:\[(\d+)\])?;", body, re.MULTILINE)
    kinds = {"u64": ctypes.c_uint64, "u32": ctypes.c_uint32, "s64": ctypes.c_int64, "char": ctypes.c_char}
    kinds |= {"struct usage": model.Usage, "struct share": model.Share}
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
    for name in (*loader.OBJECTS, loader.SCHEDULER, loader.MEMCG_OPS):
        (tmp_path / f"{name}.o").write_bytes(b"1")
    assert re.fullmatch("[0-9a-f]{16}", loader.build_of(tmp_path))
    assert loader.loaded(tmp_path) == "" and not loader.detach(tmp_path / "none")


@pytest.mark.parametrize(
    ("version", "words"), [("v6", [7, 0, 44, 1, 9]), ("v7", [7, 9, 44, 1 << 7, 0])]
)  # fmt: skip
def test_the_link_of_memcg_ops_is_asked_for_as_its_version_of_the_patches_has_it(
    version: memcg_ops.Flavour, words: list[int]
) -> None:
    """map_fd, target_fd, attach_type, flags, cgroup.relative_fd, and nothing but 0 after that."""
    attribute = memcg_ops.link_create(version, operations=7, cgroup=9)
    assert list(struct.unpack("<12I", attribute)) == words + [0] * 7


class Types:
    """A kernel's BTF."""

    def __init__(self, **structs: dict[str, int]) -> None:
        self._structs = structs

    def members(self, name: str) -> dict[str, int]:
        return self._structs.get(name, {})


@pytest.mark.parametrize(
    ("members", "expected"),
    [
        ({}, None),
        ({"below_low": 16, "get_high_delay_ms": 32}, "v6"),
        ({"memcg_charged": 0, "below_low": 16}, "v7"),
        ({"something_else": 0}, None),
    ],
)
def test_which_version_it_is_is_seen_by_its_members(members: dict[str, int], expected: str | None) -> None:
    assert memcg_ops.flavour(Types(memcg_bpf_ops=members)) == expected  # type: ignore[arg-type]


def test_operations_are_set_where_the_kernel_has_them() -> None:
    types = Types(
        bpf_struct_ops_memcg_bpf_ops={"common": 0, "data": 64}, memcg_bpf_ops={"below_low": 16, "below_min": 8}
    )
    found = memcg_ops.value(types, 96, {"below_low": 5, "below_min": 6})  # type: ignore[arg-type]
    assert list(struct.unpack("<12Q", found)) == [0] * 9 + [6, 5, 0]


@pytest.mark.parametrize(
    ("lockdown", "number", "said"),
    [
        ("none integrity [confidentiality]", 22, "lockdown=confidentiality keeps BPF from reading the kernel: "),
        ("[none] integrity confidentiality", 22, "the kernel does not know what a program needs: "),
        ("[none] integrity confidentiality", 1, "the kernel refuses BPF: run this as root, with CAP_BPF"),
        ("none [integrity] confidentiality", 13, "the kernel's verifier refuses a program: please report this"),
    ],
)
def test_a_refusal_is_put_in_words_with_the_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lockdown: str, number: int, said: str
) -> None:
    (tmp_path / "lockdown").write_text(f"{lockdown}\n")
    monkeypatch.setattr(loader, "LOCKDOWN", tmp_path / "lockdown")
    assert loader.in_words(OSError(number, "")).startswith(said)
