"""The hook's parsers: JSON, mountinfo, the cgroup's path. They run under the address sanitizer where there is one."""

from __future__ import annotations

import json
import random
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SANITIZE = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all")
Driver = Callable[[str, list[bytes]], list[str]]


@pytest.fixture(scope="session")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Driver:
    """Run the driver in one mode over many inputs; one line of output each."""
    binary = tmp_path_factory.mktemp("driver") / "hook-driver"
    sources = [str(p) for p in (ROOT / "hooks").glob("*.c") if p.name != "main.c"]
    command = ["cc", "-g", "-O1", "-Wall", "-Wextra", "-Werror", "-std=gnu11", "-o", str(binary), *sources]
    command.append(str(ROOT / "tests/unit/hook_driver.c"))
    if subprocess.run([*command, *SANITIZE], capture_output=True).returncode:
        subprocess.run(command, check=True)

    def run(mode: str, inputs: list[bytes]) -> list[str]:
        framed = b"".join(b"%d\n%s" % (len(i), i) for i in inputs)
        done = subprocess.run([binary, mode], input=framed, capture_output=True, timeout=120)
        assert done.returncode == 0, done.stderr.decode(errors="replace")
        lines = done.stdout.decode().split("\n")[:-1]
        assert len(lines) == len(inputs)
        return lines

    return run


def expected(text: str) -> object:
    """What Python makes of a text, numbers and null written as the driver does. Raises ValueError."""

    def refuse(word: str) -> object:
        raise ValueError(word)  # NaN and Infinity are Python's own

    def number(digits: str) -> str:
        return "#" + digits

    def mend(value: object) -> object:
        if isinstance(value, str):
            return "#NUL" if "\0" in value else re.sub("[\ud800-\udfff]", "\ufffd", value)
        if isinstance(value, list):
            return [mend(item) for item in value]
        if isinstance(value, dict):
            return {mend(key): mend(item) for key, item in value.items()}
        return "#null" if value is None else value

    return mend(json.loads(text, parse_constant=refuse, parse_int=number, parse_float=number))


def random_value(rng: random.Random, depth: int = 0) -> object:
    """A JSON value with strings that need escapes."""
    kinds: list[Callable[[], object]] = [
        lambda: None,
        lambda: rng.random() < 0.5,
        lambda: rng.randint(-(10**12), 10**12),
        lambda: rng.uniform(-1e9, 1e9),
        lambda: "".join(rng.choice('ab"\\/\b\f\n\r\t\x01\x7fé€𝄞\u2028') for _ in range(rng.randint(0, 12))),
    ]
    if depth < 5:
        kinds.append(lambda: [random_value(rng, depth + 1) for _ in range(rng.randint(0, 4))])
        kinds.append(
            lambda: {f"k{rng.randint(0, 99)}é\n": random_value(rng, depth + 1) for _ in range(rng.randint(0, 4))}
        )
    return rng.choice(kinds)()


def test_any_document_is_read_as_python_reads_it(driver: Driver) -> None:
    rng = random.Random(1)
    texts = []
    for _ in range(500):
        value = random_value(rng)
        texts.append(json.dumps(value, ensure_ascii=rng.random() < 0.5, indent=rng.choice([None, 2, "\t"])))
    for text, line in zip(texts, driver("json", [t.encode() for t in texts]), strict=True):
        assert line.startswith("ok "), (line, text)
        assert json.loads(line[3:]) == expected(text)


def test_mutated_documents_are_refused_or_read_as_python_does_and_never_crash(driver: Driver) -> None:
    rng = random.Random(2)
    seeds = [json.dumps(random_value(rng), indent=rng.choice([None, 1])) for _ in range(100)]
    seeds += ['{"a":"\\ud834\\udd1e\\ud834x","b":[1e5,-0.5,true,null]}', "[[[[]]]]", '"\\u00e9"']
    tokens = [*'{}[]",:\\-+.0e19 \n', "\\u", "\\ud800", "true", "nul", "1e", "00", "\x00", "\x1f"]
    texts = []
    for _ in range(6000):
        text = list(rng.choice(seeds))
        for _ in range(rng.randint(1, 4)):
            at = rng.randint(0, len(text))
            text[at : at + rng.randint(0, 3)] = rng.choice([[], [rng.choice(tokens)], text[at : at + 5]])
        texts.append("".join(text))
    for text, line in zip(texts, driver("json", [t.encode() for t in texts]), strict=True):
        try:
            value = expected(text)
        except (ValueError, RecursionError):
            assert re.match(r"error line \d+ column \d+: ", line), (line, text)
            continue
        if not line.startswith("error") or "NUL inside a member name" not in line:
            assert line.startswith("ok "), (line, text)
            assert json.loads(line[3:]) == value, text


def test_random_bytes_never_crash(driver: Driver) -> None:
    rng = random.Random(3)
    inputs = [rng.randbytes(rng.randint(0, 60)) for _ in range(1000)]
    inputs += [b'"' + rng.randbytes(rng.randint(0, 60)) + b'"' for _ in range(1000)]
    for line in driver("json", inputs):
        if line.startswith("ok "):
            json.loads(line[3:])


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("", "line 1 column 1: the text ends where a value should be"),
        ('{"a":1', "line 1 column 7: expected ',' or '}'"),
        ('{\n  "a": 1,\n}', "line 3 column 1: expected a member name in quotes"),
        ('{"a" 1}', "line 1 column 6: expected ':'"),
        ("[1 2]", "line 1 column 4: expected ',' or ']'"),
        ('"a\nb"', "line 1 column 3: control character inside a string"),
        ('"\\x"', "line 1 column 3: unknown escape"),
        ('"\\u12', "line 1 column 4: \\u is cut off"),
        ('"\\u12g4"', "line 1 column 6: \\u needs four hexadecimal digits"),
        ("01", "line 1 column 3: not a value"),
        ("nil", "line 1 column 1: not a value"),
        ("{} x", "line 1 column 4: text after the value"),
        ("[" * 65, "line 1 column 66: nested too deeply"),
        ('{"a\\u0000":1}', "line 1 column 11: NUL inside a member name"),
    ],
)
def test_the_error_says_where_and_what(driver: Driver, text: str, error: str) -> None:
    assert driver("json", [text.encode()]) == ["error " + error]


def test_a_document_that_would_take_too_much_memory_is_refused(driver: Driver) -> None:
    (line,) = driver("json", [b"[" + b"1," * 2_000_000 + b"1]"])
    assert line.endswith("too many values")


def test_the_writer_makes_valid_json_of_any_bytes(driver: Driver) -> None:
    rng = random.Random(4)
    inputs = [bytes(rng.randint(1, 255) for _ in range(rng.randint(0, 40))) for _ in range(1000)]
    inputs += ["ein Wörtchen\t\x7f€𝄞".encode(), b"\xed\xa0\x80", b"\xc0\xaf", b"\xf5\x80\x80\x80", b"\xe2\x82"]
    for raw, line in zip(inputs, driver("string", inputs), strict=True):
        text = json.loads(line[3:])
        assert text.replace("\ufffd", "") == raw.decode(errors="ignore").replace("\ufffd", "")


def test_a_long_value_is_cut_between_characters(driver: Driver) -> None:
    (line,) = driver("string", [("a" + "€" * 2000).encode()])
    assert json.loads(line[3:]) == "a" + "€" * 1365


ID = "0123456789abcdef" * 4


@pytest.mark.parametrize(
    ("path", "cgroups_path", "subgroup", "explained"),
    [
        (f"/machine.slice/libpod-{ID}.scope/container", f"machine.slice:libpod:{ID}", "", True),
        (f"/machine.slice/libpod-{ID}.scope", f"machine.slice:libpod:{ID}", "", True),
        (f"/machine.slice/libpod-{ID}.scope/mine", f"machine.slice:libpod:{ID}", "mine", True),
        (f"/machine.slice/libpod-{ID}.scope/container", f"machine.slice:libpod:{ID}", "mine", False),
        (f"/machine.slice/libpod-{ID}.scope/other", f"machine.slice:libpod:{ID}", "", False),
        (f"/a.slice/a-b.slice/crio-{ID}.scope", f"a-b.slice:crio:{ID}", "", True),
        ("/a.slice/a-b.slice", "a.slice::a-b.slice", "", True),
        (f"/libpod_parent/libpod-{ID}", f"/libpod_parent/libpod-{ID}", "", True),
        (f"/else/libpod_parent/libpod-{ID}", f"/libpod_parent/libpod-{ID}", "", False),
        (f"/system.slice/web.service/libpod-payload-{ID}", f"/system.slice/web.service/libpod-payload-{ID}", "", True),
        ("/user.slice/x/job", "./job", "", True),
        ("/user.slice/x/thejob", "job", "", False),
        ("/system.slice/ssh.service", "", "", False),  # podman run --cgroups=disabled
        ("/system.slice/ssh.service", f"machine.slice:libpod:{ID}", "", False),
        ("/system.slice/container", "", "", False),
        (f"/{ID}", "", "", True),
        (f"/system.slice/runc-{ID}.scope", "", "", True),
        (f"/system.slice/crun-{ID}.scope/container", "", "", True),
        ("/", "/", "", False),
        ("/container", "/", "", False),
        ("/a", ":", "", False),
        ("/a", "::", "", False),
        ("/a", "a:b", "", False),
    ],
)
def test_a_cgroup_is_the_containers_only_if_config_json_leads_to_it(
    driver: Driver, path: str, cgroups_path: str, subgroup: str, explained: bool
) -> None:
    assert driver("cgroup", ["\n".join([path, cgroups_path, ID, subgroup]).encode()]) == [f"ok {int(explained)}"]


def test_mountinfo_is_read_with_its_escapes_and_tags(driver: Driver) -> None:
    table = (
        b"36 35 98:0 /mnt1 /mnt\\0402 rw,noatime master:1 - ext3 /dev/root rw,errors=continue\n"
        b"nonsense\n"
        b"40 36 0:27 / /sys/fs/cgroup ro,nosuid shared:4 master:2 - cgroup2 cgroup2 rw\n"
        b"41 36 0:28 / /x rw - tmpfs tmpfs rw,x=shared:9\n"
        b"42 36 0:28 / /cut rw"
    )
    assert driver("mountinfo", [table]) == ["ok 36|/mnt1|/mnt 2|-w- 40|/|/sys/fs/cgroup|s-c 41|/|/x|-w-"]


def test_mutated_mountinfo_never_crashes(driver: Driver) -> None:
    rng = random.Random(5)
    line = b"36 35 98:0 /mnt1 /mnt\\0402 rw,noatime shared:1 master:1 - cgroup2 /dev/root rw\n" * 3
    inputs = []
    for _ in range(1000):
        text = bytearray(line)
        for _ in range(rng.randint(1, 6)):
            at = rng.randrange(len(text))
            text[at : at + rng.randint(0, 4)] = bytes(rng.choice(b" \n\\01-z") for _ in range(rng.randint(0, 3)))
        inputs.append(bytes(text).replace(b"\0", b""))
    driver("mountinfo", inputs)


def write_bundle(folder: Path, state: dict[str, object], config: str) -> Path:
    (folder / "config.json").write_text(config)
    path = folder / "state.json"
    path.write_text(json.dumps(state, indent=4))
    return path


BAD_ID = "error the id is not made of 1 to 128 of A-Z a-z 0-9 . _ - with a letter or digit first"


@pytest.mark.parametrize(
    ("change", "config", "line"),
    [
        ({}, '{"root":{"path":"/r"}}', "ok abc 1 0 /r"),
        ({}, '{\n "root" : {\n "path" : "rootfs" } }', "ok abc 1 0 BUNDLE/rootfs"),
        ({"root": "/unused", "x": [1]}, '{"root":{"path":"\\u002fr"}}', "ok abc 1 0 /r"),
        ({"pid": 0}, "not read", "ok abc 0 1 "),
        ({"status": "stopped"}, "not read", "ok abc 1 1 "),
        (
            {"id": "../x"},
            "{}",
            "error the id is not made of 1 to 128 of A-Z a-z 0-9 . _ - with a letter or digit first",
        ),
        ({"id": None}, "{}", "error the state has no id"),
        ({"bundle": "rel"}, "{}", "error the state has no absolute bundle path"),
        ({}, "{}", "error BUNDLE/config.json has no usable root.path"),
        ({}, "{", "error BUNDLE/config.json is not valid JSON: line 1 column 2: expected a member name in quotes"),
    ],
)
def test_state_and_config(driver: Driver, tmp_path: Path, change: dict[str, object], config: str, line: str) -> None:
    state = {"ociVersion": "1.0.2", "id": "abc", "pid": 1, "status": "created", "bundle": str(tmp_path)} | change
    path = write_bundle(tmp_path, state, config)
    assert driver("state", [str(path).encode()]) == [line.replace("BUNDLE", str(tmp_path))]


def test_a_state_of_more_than_a_mebibyte_is_refused(driver: Driver, tmp_path: Path) -> None:
    path = write_bundle(tmp_path, {"id": "x" * (1 << 20)}, "{}")
    assert driver("state", [str(path).encode()]) == [
        "error read the state on stdin: more than 1024 KiB: File too large"
    ]


def test_the_engines_file_asks_for_the_annotations_that_the_documents_name() -> None:
    hook = json.loads((ROOT / "oci-config/hooks.d/50-agentcgroup.json").read_text())
    assert hook["version"] == "1.0.0"
    assert hook["stages"] == ["prestart", "poststop"]
    assert hook["hook"]["path"] == "/usr/libexec/agentcgroup/agentcgroup-hook"
    assert hook["hook"]["timeout"] == 5
    ((key, value),) = hook["when"]["annotations"].items()
    wanted = ["agentcgroup.policy", "agentcgroup.io/policy", "policy.agentcgroup.io/agent"]
    others = ["agentcgroup.policyx", "xagentcgroup.policy", "agentcgroupXpolicy", "policy.agentcgroup.io/a/b"]
    assert [bool(re.search(key, k)) for k in wanted + others] == [True] * 3 + [False] * 4
    assert re.search(value, "")
