"""What the agent reads, word by word, for a table of outcomes."""

import json
import signal
from pathlib import Path
from typing import Any

import pytest
from agentcgroup import feedback
from agentcgroup.commandline import analyse
from agentcgroup.hint import parse
from agentcgroup.outcome import Clamp, Neighbour, Outcome, Step

DOCUMENT = Path(__file__).parents[2] / "docs" / "feedback.md"
MIB, GIB = 1024**2, 1024**3
KILLED = int(signal.SIGKILL)
ALLOWED = 4 * GIB


def outcome(text: str = "pytest -x tests", **changes: Any) -> Outcome:
    command = analyse(["bash", "-c", text], False)
    plain = {"status": 0, "duration_s": 60.0, "peak_bytes": 100 * MIB, "limit_bytes": 512 * MIB, "pids_limit": 256}
    base = {"container": "c" * 64, "number": 7, "policy": "coding-agent", "command": command}
    return Outcome(**{**base, "command_class": command.command_class, **plain, **changes})


def oom(text: str = "pytest -x tests", **changes: Any) -> Outcome:
    ended = {"status": KILLED, "peak_bytes": 512 * MIB, "oom_kills": 2, "oom_victims": ("pytest", "python3")}
    return outcome(text, **{**ended, **changes})


TABLE = [
    ("nothing happened", outcome(), ()),
    ("it failed by itself", outcome(status=1 << 8), ()),
    ("a TERM of its own", outcome(status=15), ()),
    (
        "claude-code#13126: the call dies, not the agent, and is told why",
        oom(),
        (
            "Call 7 was ended: out of memory. Peak 512 MiB, limit 512 MiB (default). Killed: pytest, python3."
            " Next: AGENT_RESOURCE_HINT=memory:768m pytest -x tests",
        ),
    ),
    (
        "with company",
        oom(others=(Neighbour(5, "npm", 812 * MIB), Neighbour(6, "cargo", 1229 * MIB))),
        (
            "Call 7 was ended: out of memory. Peak 512 MiB, limit 512 MiB (default). Killed: pytest, python3.",
            "At the same time: call 6 cargo 1.2 GiB, call 5 npm 812 MiB."
            " Next: AGENT_RESOURCE_HINT=memory:768m pytest -x tests",
        ),
    ),
    (
        "a hint in the text is replaced, its other keys stay",
        oom(
            "cd /x && AGENT_RESOURCE_HINT=memory:low,cpu:high pytest",
            hint=parse("memory:low,cpu:high"),
            limit_source="hint low",
        ),
        (
            "Call 7 was ended: out of memory. Peak 512 MiB, limit 512 MiB (hint low). Killed: pytest, python3."
            " Next: cd /x && AGENT_RESOURCE_HINT=memory:768m,cpu:high pytest",
        ),
    ),
    (
        "studio#6059: the second failure asks for twice as much",
        oom(repeat_failures=2),
        (
            "Call 7 was ended: out of memory. Peak 512 MiB, limit 512 MiB (default). Killed: pytest, python3."
            " This command has failed for memory 2 times in a row."
            " Next: AGENT_RESOURCE_HINT=memory:1g pytest -x tests",
        ),
    ),
    (
        "the third for all there is",
        oom(repeat_failures=3, peak_bytes=GIB, limit_bytes=GIB, limit_source="hint 1g"),
        (
            "Call 7 was ended: out of memory. Peak 1 GiB, limit 1 GiB (hint 1g). Killed: pytest, python3."
            " This command has failed for memory 3 times in a row."
            " Next: AGENT_RESOURCE_HINT=memory:4g pytest -x tests",
        ),
    ),
    (
        "no more is allowed",
        oom(peak_bytes=4 * GIB, limit_bytes=4 * GIB, limit_source="hint max"),
        (
            "Call 7 was ended: out of memory. Peak 4 GiB, limit 4 GiB (hint max). Killed: pytest, python3."
            " Next: 4 GiB is the most a call may have here; run one test file (pytest -x FILE).",
        ),
    ),
    (
        "the next hint is never above what is allowed",
        oom(peak_bytes=3 * GIB, limit_bytes=3 * GIB, limit_source="hint 3g"),
        (
            "Call 7 was ended: out of memory. Peak 3 GiB, limit 3 GiB (hint 3g). Killed: pytest, python3."
            " Next: AGENT_RESOURCE_HINT=memory:4g pytest -x tests",
        ),
    ),
    (
        "centaur#1454: killed by a limit above its own",
        oom(peak_bytes=300 * MIB, container_limit_bytes=2 * GIB, others=(Neighbour(5, "npm", GIB),)),
        (
            "Call 7 was ended: out of memory. Peak 300 MiB, limit 512 MiB (default). All calls together may have 2 GiB."
            " Killed: pytest, python3.",
            "At the same time: call 5 npm 1 GiB. Next: run it again when call 5 has ended.",
        ),
    ),
    (
        "killed by a limit above its own, alone",
        oom(ended="container limit", container_limit_bytes=512 * MIB, oom_victims=()),
        (
            "Call 7 was ended: out of memory. Peak 512 MiB, limit 512 MiB (default). All calls together may have"
            " 512 MiB. Killed: 2 processes. Next: run one test file (pytest -x FILE).",
        ),
    ),
    (
        "a part of it was killed and the shell went on",
        oom("make all", status=2 << 8, oom_kills=1, oom_victims=("cc1plus",)),
        (
            "Call 7 went on after an out-of-memory kill, its result is not whole."
            " Peak 512 MiB, limit 512 MiB (default). Killed: cc1plus. Next: AGENT_RESOURCE_HINT=memory:768m make all",
        ),
    ),
    (
        "a long command is not repeated",
        oom("pytest " + "x" * 200),
        (
            "Call 7 was ended: out of memory. Peak 512 MiB, limit 512 MiB (default). Killed: pytest, python3."
            " Next: run it again with AGENT_RESOURCE_HINT=memory:768m before everything else in the command.",
        ),
    ),
    (
        "claude-code#87319: the stall deadline",
        outcome(
            ended="stall",
            status=15,
            stall_deadline_s=30.0,
            throttled_s=31.2,
            peak_bytes=512 * MIB,
            others=(Neighbour(5, "npm", GIB),),
        ),
        (
            "Call 7 was ended at the stall deadline of 30 s: it waited for memory for 31.2 s."
            " Peak 512 MiB, limit 512 MiB (default).",
            "At the same time: call 5 npm 1 GiB. Next: AGENT_RESOURCE_HINT=memory:768m pytest -x tests",
        ),
    ),
    (
        "the stall deadline of others",
        outcome(
            ended="stall",
            status=15,
            stall_deadline_s=30.0,
            held_s=4.0,
            peak_bytes=300 * MIB,
            container_limit_bytes=600 * MIB,
            others=(Neighbour(5, "npm", GIB),),
        ),
        (
            "Call 7 was ended, the largest of the calls that waited for memory until the stall deadline of 30 s."
            " Peak 300 MiB, limit 512 MiB (default). All calls together may have 600 MiB.",
            "At the same time: call 5 npm 1 GiB. Next: run it again when call 5 has ended.",
        ),
    ),
    (
        "claude-code#84647: the time limit",
        outcome("grep -r x /", ended="time", status=15, time_limit_s=120.0),
        ("Call 7 was ended at its time limit of 2 min. Next: run it on a narrower path.",),
    ),
    (
        "a time limit of its own hint",
        outcome(ended="time", status=15, time_limit_s=90.0, hint=parse("time:90s")),
        ("Call 7 was ended at its time limit of 90 s. Next: run it without time in the hint.",),
    ),
    (
        "claude-code#57: a fork storm",
        outcome(ended="fork storm", status=KILLED, pids_peak=256, pids_denied=5312, zombies=1),
        (
            "Call 7 was ended: fork storm, 256 processes and threads of at most 256, 1 zombie, 5312 more refused."
            " Next: check the command for a script or hook that starts itself.",
        ),
    ),
    (
        "opencomputer#194: the limit of processes",
        outcome("make -j64", pids_denied=14, pids_peak=256),
        (
            "Call 7 reached its limit of 256 processes and threads: 14 could not be started"
            ' ("Resource temporarily unavailable"). Next: start fewer processes at once, for example make -j2.',
        ),
    ),
    (
        "subfloor#644: zombies fill it",
        outcome(pids_denied=1, pids_peak=256, zombies=200),
        (
            "Call 7 reached its limit of 256 processes and threads: 1 could not be started"
            ' ("Resource temporarily unavailable"), 200 were zombies.'
            " Next: end the program that does not wait for its children.",
        ),
    ),
    (
        "openclaw#68691: zombies come near it",
        outcome("x", pids_peak=240, zombies=1),
        ("Call 7 came to 240 of 256 processes and threads, 1 was a zombie. Next: start fewer processes at once.",),
    ),
    (
        "claude-code#82433: background processes are ended",
        outcome(ended="orphans", orphans=3, orphan_names=("node", "esbuild", "node"), orphan_action="kill"),
        (
            "Call 7 left 3 background processes (node x2, esbuild), ended with the call."
            " Next: keep a call in the foreground while its processes are needed.",
        ),
    ),
    (
        "or reported",
        outcome(orphans=1, orphan_names=("node",), orphan_action="report"),
        (
            "Call 7 left 1 background process (node), still running within its limits."
            " Next: end them with kill when they are not needed.",
        ),
    ),
    ("or kept, as the policy wants it", outcome(orphans=1, orphan_names=("node",), orphan_action="keep"), ()),
    (
        "slowed at its own limit",
        outcome(throttled_s=12.0, held_s=0.4, peak_bytes=512 * MIB),
        (
            "Call 7 was slowed for 12.4 s of 60 s: 12 s waiting for memory, 400 ms held for other calls."
            " Peak 512 MiB, limit 512 MiB (default). Next: AGENT_RESOURCE_HINT=memory:768m pytest -x tests",
        ),
    ),
    (
        "slowed by others",
        outcome(throttled_s=0.3),
        (
            "Call 7 was slowed for 300 ms of 60 s: 300 ms waiting for memory. Peak 100 MiB, limit 512 MiB (default)."
            " Next: run heavy commands one after another.",
        ),
    ),
    (
        "held before its container's calls ran out of memory",
        outcome(held_s=3.0, steps=(Step("hold", 1.5, "", 940 * MIB, 1000 * MIB, 0), Step("release", 4.5))),
        (
            "Call 7 was slowed for 3 s of 60 s: 3 s held for other calls. Peak 100 MiB, limit 512 MiB (default).",
            "When it was held the calls of this container had 940 MiB of 1000 MiB in use."
            " Next: run heavy commands one after another.",
        ),
    ),
    (
        "held before its slice ran out of memory",
        outcome(held_s=3.0, steps=(Step("hold", 1.5, "agentcgroup.slice", 940 * MIB, 1000 * MIB, 64 * MIB),)),
        (
            "Call 7 was slowed for 3 s of 60 s: 3 s held for other containers. Peak 100 MiB, limit 512 MiB (default).",
            "When it was held the containers of agentcgroup.slice had 940 MiB of 1000 MiB in use, and 64 MiB more was"
            " promised. Next: use less at a time: fewer workers, smaller parts.",
        ),
    ),
    (
        "told ENOMEM at its limit",
        outcome(status=1 << 8, refusals=3, peak_bytes=500 * MIB),
        (
            "Call 7 was refused memory 3 times (ENOMEM). Peak 500 MiB, limit 512 MiB (default)."
            " Next: AGENT_RESOURCE_HINT=memory:768m pytest -x tests",
        ),
    ),
    (
        "told ENOMEM because others waited",
        outcome(status=1 << 8, refusals=1, steps=(Step("enomem", 30.0),)),
        (
            "Call 7 was refused memory once (ENOMEM): others waited until the stall deadline for what it had. Peak"
            " 100 MiB, limit 512 MiB (default). Next: AGENT_RESOURCE_HINT=memory:768m pytest -x tests",
        ),
    ),
    ("slowed too little to tell", outcome(throttled_s=0.2), ()),
    (
        "slowed for a twentieth of a short call",
        outcome(duration_s=1.0, held_s=0.06),
        (
            "Call 7 was slowed for 60 ms of 1 s: 60 ms held for other calls. Peak 100 MiB, limit 512 MiB (default)."
            " Next: run heavy commands one after another.",
        ),
    ),
    ("noise of a very short call", outcome(duration_s=0.05, throttled_s=0.009), ()),
    (
        "queued",
        outcome(queued_s=8.0),
        (
            "Call 7 waited 8 s before it started: memory was in use."
            " Next: AGENT_RESOURCE_HINT=memory:160m pytest -x tests",
        ),
    ),
    (
        "queued, and it needed what it had",
        outcome(queued_s=8.0, peak_bytes=500 * MIB),
        ("Call 7 waited 8 s before it started: memory was in use. Next: run heavy commands one after another.",),
    ),
    (
        "a hint above the policy",
        outcome(
            hint=parse("memory:8g,time:2h,cpu:8,pids:5000"),
            clamps=(
                Clamp("memory", 8 * GIB, 4 * GIB),
                Clamp("time", 7200.0, 600.0),
                Clamp("cpu", 8.0, 1.5),
                Clamp("pids", 5000, 256),
            ),
        ),
        (
            "Hint: memory 8 GiB asked, 4 GiB granted, time 2 h asked, 10 min granted, cpu 8 asked, 1.5 granted,"
            " pids 5000 asked, 256 granted, the most allowed here."
            " Next: ask for at most memory:4g,cpu:1.5,pids:256,time:600s.",
        ),
    ),
    (
        "a hint that is not understood",
        outcome(hint=parse("memroy:2g,pids:0")),
        (
            'Hint: "memroy:2g": there is no such key, did you mean memory?; "pids:0": write a whole number from 1 to'
            " 4194304. Next: write the hint as in AGENT_RESOURCE_HINT=memory:2g,time:10m COMMAND",
        ),
    ),
    (
        "a key that is misspelt",
        outcome(hint=parse("memroy:2g")),
        (
            'Hint: "memroy:2g": there is no such key, did you mean memory?'
            " Next: write the hint as in AGENT_RESOURCE_HINT=memory:2g,time:10m COMMAND",
        ),
    ),
    (
        "too high a hint for memory",
        outcome(hint=parse("memory:8g"), clamps=(Clamp("memory", 8 * GIB, 4 * GIB),)),
        ("Hint: memory 8 GiB asked, 4 GiB granted, the most allowed here. Next: ask for at most memory:4g.",),
    ),
    (
        "a hint with an expansion",
        outcome("AGENT_RESOURCE_HINT=$X pytest"),
        (
            "Hint: AGENT_RESOURCE_HINT holds an expansion, which is not evaluated: write the value itself."
            " Next: write the hint as in AGENT_RESOURCE_HINT=memory:2g,time:10m COMMAND",
        ),
    ),
    (
        "podman#10825: SIGKILL without an OOM is not called one",
        outcome(status=KILLED),
        (
            "Call 7 was ended by SIGKILL: no memory OOM was recorded for it, and agentcgroup did not send the signal."
            " Next: look for kill -9, pkill or timeout -s KILL in the command and in what it runs.",
        ),
    ),
    (
        "nor is an exit with 137",
        outcome(status=137 << 8),
        (
            "Call 7 exited with 137 (SIGKILL of a process in it): no memory OOM was recorded for it, and agentcgroup"
            " did not send the signal."
            " Next: look for kill -9, pkill or timeout -s KILL in the command and in what it runs.",
        ),
    ),
    (
        "observe speaks of no limit and offers none",
        oom(mode="observe", clamps=(Clamp("memory", 8 * GIB, 4 * GIB),), pids_denied=3),
        (
            "Call 7 was ended: out of memory. Peak 512 MiB, no limit of its own. Killed: pytest, python3."
            " Next: run one test file (pytest -x FILE).",
        ),
    ),
]


@pytest.mark.parametrize(("call", "lines"), [row[1:] for row in TABLE], ids=[row[0] for row in TABLE])
def test_the_words(call: Outcome, lines: tuple[str, ...]) -> None:
    assert feedback.compose(call, ALLOWED) == [f"[agentcgroup] {line}" for line in lines]


def test_the_documentation_shows_what_is_said() -> None:
    shown = [line.strip() for line in DOCUMENT.read_text().splitlines() if line.startswith("    ")]
    examples = [line for line in shown if line.startswith(("Call 7 ", "Hint:")) and "..." not in line]
    said = {line for row in TABLE for line in row[2]}
    assert len(examples) >= 12
    assert [line for line in examples if line not in said] == []


def test_a_script_and_a_shell_are_told_where_the_hint_goes() -> None:
    for argv, expected in (
        (["bash", "run.sh"], "run it again with AGENT_RESOURCE_HINT=memory:768m in its environment."),
        (["bash"], "run /dev/agentcgroup/agentcgroup-hint memory:768m, then the command again."),
    ):
        lines = feedback.compose(oom(command=analyse(argv, False)), ALLOWED)
        assert lines[-1].partition(" Next: ")[2] == expected


def test_six_lines_hold_the_most_important() -> None:
    everything = oom(
        "AGENT_RESOURCE_HINT=$X make -j64",
        ended="time",
        time_limit_s=600.0,
        pids_denied=9,
        orphans=2,
        orphan_action="kill",
        queued_s=3.0,
        clamps=(Clamp("memory", 8 * GIB, 4 * GIB),),
        others=(Neighbour(5, "npm", GIB),),
    )
    lines = feedback.compose(everything, ALLOWED)
    assert len(lines) == 6
    starts = (
        "Call 7 was ended at its time limit",
        "Call 7 was ended: out of memory",
        "At the same time",
        "Call 7 reached",
    )
    for line, start in zip(lines, starts, strict=False):
        assert line.startswith(f"[agentcgroup] {start}")
    assert sum(" Next: " in line for line in lines) == 5


def test_the_twin_is_the_outcome_with_the_lines() -> None:
    call = oom("x" * 9000)
    twin = json.loads(feedback.twin(call, ["line"]))
    assert (twin["feedback"], twin["result"], twin["number"], len(twin["command"])) == (["line"], "oom", 7, 4096)
