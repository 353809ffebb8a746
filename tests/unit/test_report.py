"""The report: its numbers, a policy that can be used as it stands, and nothing of a container's text is obeyed."""

from __future__ import annotations

import json
import random
import re
import time
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
import yaml
from agentcgroup import config
from agentcgroup.cli import main
from agentcgroup.commandclass import of
from agentcgroup.commandline import analyse
from agentcgroup.outcome import Outcome, Step
from agentcgroup.policy.load import load_policies
from agentcgroup.records import record_of
from agentcgroup.report import fit
from agentcgroup.report.gather import CLASSES, DRAWN, OTHERS, TOLD, Figures, gather, points
from agentcgroup.report.page import page
from agentcgroup.report.svg import memory, text
from hypothesis import given, settings
from hypothesis import strategies as st

MIB, GIB = 1 << 20, 1 << 30
PACKAGED = Path(__file__).parents[2] / "oci-config" / "policies.d"
NASTY = "\x1b]0;owned\x07</title><script>alert(1)</script><img src=x onerror=alert(2)>\"'&\n\udcff\u202e\x9b31m"
PROFILE = ((500, 10 * MIB, 0), (1000, 200 * MIB, 400), (1500, 250 * MIB, 800), (2000, 250 * MIB, 800))


def record(number: int = 1, text: str = "pytest -x", **changes: Any) -> dict[str, Any]:
    command = analyse(["sh", "-c", text], False)
    plain = {"container": "c0ffee" * 10, "name": "web", "number": number, "policy": "coding-agent", "status": 0}
    more = {"started": 1796060000.0 + 10 * number, "duration_s": 2.5, "peak_bytes": 28 * MIB, "limit_bytes": 256 * MIB}
    made = {**plain, **more, "command": command, "command_class": command.command_class, **changes}
    return dict(json.loads(json.dumps(record_of(Outcome(**made), "full"))))


class Reader(HTMLParser):
    """What a browser would see."""

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.open: list[str] = []
        self.texts: list[str] = []
        self.feed(html)
        self.close()
        assert not self.open, self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}
        if tag != "meta":
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


TAGS = {
    "html", "head", "meta", "title", "style", "body", "h1", "h2", "p", "pre", "table", "tr", "th", "td", "figure",
    "figcaption", "b", "span",
}  # fmt: skip
DRAWING = {"svg", "line", "path", "rect", "circle", "polyline", "text", "title"}


def harmless(html: str) -> Reader:
    """Only our own elements, no control characters, nothing that is loaded or run."""
    found = Reader(html)
    assert found.tags <= TAGS | DRAWING
    assert not {name for name in found.attributes if name.startswith("on") or name in ("src", "href", "xlink:href")}
    assert all(line.isprintable() for line in html.split("\n"))
    assert "url(" not in html and "@import" not in html
    return found


# --- numbers ----------------------------------------------------------------------------------------------------------


def test_figures_by_class() -> None:
    some = [record(n, peak_bytes=n * MIB) for n in range(1, 101)]
    some += [record(101, "npm run build", peak_bytes=256 * MIB, oom_kills=1, status=9)]
    found = gather(some)
    assert (found.calls, found.whole.count, found.whole.cut) == (101, 101, 1)
    pytest_calls, build = found.classes["pytest"], found.classes["npm run build"]
    assert [fit.quantile(pytest_calls.peaks, share) / MIB for share in (0.5, 0.9, 0.95, 0.99, 1.0)] == [
        50,
        90,
        95,
        99,
        100,
    ]
    assert (build.cut, build.failed, list(build.needs)) == (1, 1, [384 * MIB])
    assert found.results == {"ok": 100, "oom": 1}


@pytest.mark.parametrize(
    ("changes", "cut"),
    [
        ({}, False),
        ({"oom_kills": 1}, True),
        ({"ended": "stall"}, True),
        ({"ended": "time"}, False),
        ({"refusals": 2}, True),
        ({"peak_bytes": 250 * MIB}, False),
        ({"peak_bytes": 250 * MIB, "throttled_s": 1.0}, True),
        ({"throttled_s": 1.0}, False),
    ],
)
def test_a_call_that_was_cut_off_needed_more_than_its_peak(changes: dict[str, Any], cut: bool) -> None:
    figures = Figures()
    figures.add(record(**changes))
    assert figures.cut == cut
    assert list(figures.needs) == [figures.peaks[0] * (1.5 if cut else 1)]


def test_calls_at_the_same_time_are_added_up() -> None:
    overlapping = [record(n, started=1000.0 + n, duration_s=1.5, peak_bytes=MIB) for n in range(4)]
    alone = [record(9, started=2000.0, duration_s=1.0, peak_bytes=1), record(10, started=2001.0, peak_bytes=2)]
    assert gather(overlapping + alone).together == 2 * MIB
    other = record(1, container="beef" * 16, started=1001.0, peak_bytes=3 * MIB)
    assert gather([*overlapping, other]).together == 3 * MIB


def test_the_policy_can_be_used_as_it_stands(tmp_path: Path) -> None:
    some = [record(n, "git status", peak_bytes=5 * MIB, pids_peak=3) for n in range(300)]
    some += [record(n, "cd /src && python3.12 -m pytest -x", peak_bytes=900 * MIB, pids_peak=70) for n in range(6)]
    some += [record(n, "npm --prefix web run build", peak_bytes=3 * GIB, duration_s=200) for n in range(5)]
    some += [record(1, "make all", peak_bytes=6 * GIB)]
    fitting = fit.fit(gather(some))
    assert fit.policy(fitting, "coding-agent") == (
        "extends: coding-agent\n"
        "call:\n  memory:\n    default: 128M\n    max: 7680M\n  pids_max: 192\n  time_max: 7min\n"
        "rules:\n  - match: '\\bnpm\\b.{0,99}run build(\\s|$)'\n    hint: memory:3840m\n"
        "  - match: '\\bpython[0-9.]{0,6}\\b.{0,99}-m pytest(\\s|$)'\n    hint: memory:1280m\n"
    )
    (tmp_path / "fitted.yaml").write_text(fit.policy(fitting, "coding-agent"))
    policies = load_policies((PACKAGED, tmp_path))
    assert not policies.errors, policies.errors
    found = policies.get("fitted")
    rule = found.rule_for("npm --prefix web run build")
    assert rule is not None and rule.hint == "memory:3840m"
    assert found.call.memory.default.of(64 * GIB) == 128 * MIB


COMMANDS = (
    "pytest -x", "python3 -m pytest tests", "python script.py", "python -c 'x'", "npm run test",
    "cargo build --release", "make -j8 all", "node server.js", "g++ -c x.cc", "java -jar app.jar", "./gradlew assemble",
)  # fmt: skip


@pytest.mark.parametrize("command", COMMANDS)
def test_a_rule_matches_the_commands_of_its_class_and_is_accepted(command: str, tmp_path: Path) -> None:
    name = analyse(["sh", "-c", command], False).command_class
    fitting = fit.Fit(GIB, 8 * GIB, 64, 1, ((name, 2 * GIB),))
    (tmp_path / "p.yaml").write_text(fit.policy(fitting, "coding-agent"))
    policies = load_policies((PACKAGED, tmp_path))
    assert not policies.errors, policies.errors
    rule = policies.get("p").rule_for(f"cd /x && {command}")
    assert rule is not None and rule.hint == "memory:2g"


@given(st.lists(st.text(max_size=20), min_size=1, max_size=4))
def test_no_class_makes_a_policy_that_is_no_yaml_or_more_than_a_rule(words: list[str]) -> None:
    name = of(words)
    found = gather(
        [record(n, "true", command_class=name, peak_bytes=GIB) for n in range(6)] + [record(n) for n in range(200)]
    )
    document = yaml.safe_load(fit.policy(fit.fit(found), "coding-agent"))
    assert set(document) <= {"extends", "call", "rules"}
    assert all(set(rule) == {"match", "hint"} and re.compile(rule["match"]) for rule in document.get("rules", ()))


# --- pictures ---------------------------------------------------------------------------------------------------------


def test_a_picture_has_the_curve_and_what_was_done() -> None:
    steps = (Step("hold", 1.0), Step("release", 1.5), Step("hold", 1.8), Step("end", 2.2))
    drawn = memory(record(profile=PROFILE, steps=steps, ended="stall", peak_bytes=256 * MIB))
    assert len(re.search(r'<polyline class="memory" points="([^"]*)"', drawn)[1].split()) == 4  # type: ignore[index]
    assert drawn.count('class="throttled"') == 2 and drawn.count('class="held"') == 2
    assert [*re.findall(r"<title>([^<]*)</title>", drawn)] == ["end", "stall"]
    assert 'class="limit"' in drawn and 'class="peak"' in drawn and ">256 MiB<" in drawn and ">2.5 s<" in drawn


def test_a_far_limit_does_not_flatten_the_curve() -> None:
    assert 'class="limit"' not in memory(record(profile=PROFILE, limit_bytes=8 * GIB, peak_bytes=256 * MIB))


def test_a_call_that_is_still_held_at_its_end_is_held_until_then() -> None:
    drawn = memory(record(profile=PROFILE, steps=(Step("hold", 2.0),)))
    x, width = (float(v) for v in re.search(r'class="held" x="([\d.]+)" y="8" width="([\d.]+)"', drawn).groups())  # type: ignore[union-attr]
    assert x + width == pytest.approx(636, abs=0.2)


def test_broken_points_are_left_out() -> None:
    broken = [[0, 1, 0], [5, 2], "x", [1e400, 2, 3], [9, "y", None], [4, 1, 1], [10, -3, 0]]
    assert points({"profile": broken}) == [(0, 1, 0), (0, 2, 3), (9, 0, 0), (10, 0, 0)]


# --- the page ---------------------------------------------------------------------------------------------------------


def test_the_page_has_every_section() -> None:
    told = ("[agentcgroup] Call 7 was ended: out of memory. Peak 256 MiB. Next: AGENT_RESOURCE_HINT=memory:1g pytest",)
    some = [record(n) for n in range(6)] + [record(7, oom_kills=1, status=9, profile=PROFILE, feedback=told)]
    found = " ".join(harmless(page(gather(some), "web")).texts)
    for expected in (
        "agentcgroup: web", "7 calls, 2026-", "Containers: web.", "ok 6, oom 1", "extends: coding-agent",
        "default: 128M", "web/7", "Call 7 was ended: out of memory. Peak 256 MiB.", "ended for memory", "not to trust",
    ):  # fmt: skip
        assert expected in found, expected
    assert "AGENT_RESOURCE_HINT" not in found


def test_it_is_bounded_whatever_the_ledger_holds() -> None:
    some = [
        record(n, "x", command_class=f"class{n % 300}", profile=PROFILE, feedback=("[agentcgroup] line",) * 9)
        for n in range(1000)
    ]
    found = gather(some)
    assert len(found.classes) == CLASSES + 1 and found.classes[OTHERS].count > 0
    assert (len(found.drawn), found.with_profile, len(found.told), found.told_total) == (DRAWN, 1000, TOLD, 6000)
    html = page(found, "since 24h")
    harmless(html)
    assert len(html) < 2 << 20
    assert f"{DRAWN} of 1000 are shown" in html and f"The latest {TOLD} of 6000 lines." in html


@pytest.mark.parametrize("nasty", [NASTY, "x" * 100_000 + "<b>", "\0\x7f\u2028", "]]>--><!--", "'; }</style><b>"])
def test_hostile_text_is_text(nasty: str) -> None:
    fields = (
        "name",
        "container",
        "policy",
        "command",
        "command_class",
        "first_word",
        "result",
        "kind",
        "limit_source",
        "hint",
    )
    hostile = record(profile=PROFILE, oom_kills=1) | dict.fromkeys(fields, nasty)
    hostile["kind"] = "call"
    hostile["feedback"] = [nasty]
    hostile["steps"] = [{"step": nasty, "at_s": 1.0, "budget": nasty, "limit": 5}, {"step": "end", "at_s": 1.0}]
    html = page(gather([hostile]), nasty)
    found = harmless(html)
    assert "script" not in found.tags and "img" not in found.tags
    assert len(html) < 100_000


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20) | st.just(NASTY),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=200)
@given(st.lists(st.dictionaries(st.sampled_from(sorted(record())), json_values), min_size=1, max_size=3))
def test_no_damaged_record_raises_or_is_obeyed(damaged: list[dict[str, Any]]) -> None:
    harmless(page(gather([record(profile=PROFILE) | one for one in damaged]), "x"))


def test_text_is_cut_printable_and_escaped() -> None:
    assert text("<a&\"'\x1b>") == "&lt;a&amp;&quot;&#x27;?&gt;"
    assert len(text("x" * 1000)) == 200


def test_a_large_ledger_is_read_in_seconds() -> None:
    dice = random.Random(1)
    one = record(profile=PROFILE)
    some = ({**one, "number": n, "peak_bytes": dice.randrange(1, 4 * GIB)} for n in range(20_000))
    began = time.process_time()
    page(gather(some), "x")
    assert time.process_time() - began < 20


# --- the command ------------------------------------------------------------------------------------------------------


@pytest.fixture
def ledger(tmp_path: Path, run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A ledger with an old call of `web` and a new one of `db`."""
    folder, loaded = tmp_path / "log", config.load()
    folder.mkdir()
    some = [record(1), record(2, name="db", container="beef" * 16, started=time.time() - 60)]
    (folder / "calls.jsonl").write_text("".join(json.dumps(one) + "\n" for one in some))
    monkeypatch.setattr(config, "load", lambda: replace(loaded, records=replace(loaded.records, dir=folder)))
    monkeypatch.chdir(tmp_path)
    return folder


@pytest.mark.parametrize(
    ("argv", "what", "calls"),
    [
        (("web",), "web", 1),
        (("beefbeef",), "beefbeef", 1),
        (("--since=1h",), "since 1h", 1),
        (("--since=2026-11-01",), "since 2026-11-01", 2),
    ],
)
def test_a_file_for_its_owner_alone(
    ledger: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], argv: tuple[str, ...], what: str, calls: int
) -> None:
    output = tmp_path / "agentcgroup-report.html"
    output.symlink_to(tmp_path / "elsewhere")
    assert main(["report", *argv]) == 0
    assert capsys.readouterr().out == f"agentcgroup-report.html: {calls} calls\n"
    assert f"<h1>agentcgroup: {what}</h1>" in output.read_text() and f"{calls} calls, 2026" in output.read_text()
    assert output.stat().st_mode & 0o777 == 0o600 and not output.is_symlink()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["agentcgroup-report.html", "log"]


def test_it_can_go_to_stdout(ledger: Path, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    assert main(["report", "web", "--output", "-"]) == 0
    harmless(capfdbinary.readouterr().out.decode())


@pytest.mark.parametrize(
    ("argv", "error"),
    [
        ((), "which calls: agentcgroup report CONTAINER, or agentcgroup report --since 24h"),
        (("nobody",), 'no record of "nobody" in {log}'),
        (("web", "--since=1h"), 'no record of "web since 1h" in {log}'),
        (("web", "-o", "missing/x.html"), "missing/x.html: No such file or directory: choose another with --output"),
        (("web", "-o", "log"), "log: Is a directory: choose another with --output"),
    ],
)
def test_a_mistake_gets_one_clear_line(
    ledger: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], argv: tuple[str, ...], error: str
) -> None:
    assert main(["report", *argv]) == 1
    assert capsys.readouterr().err == f"agentcgroup: {error.format(log=ledger)}\n"
    assert [path.name for path in tmp_path.iterdir()] == ["log"]
