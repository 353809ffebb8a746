"""What a shell's argv says: kind of call, first word, class for learning, and the hint in front."""

import subprocess
import time
from itertools import product

import pytest
from agentcgroup.commandline import HINT_NAME, MAX_TEXT, Command, analyse


def command(text: str) -> Command:
    return analyse(["bash", "-c", text], False)


@pytest.mark.parametrize(
    "options",
    [
        "-c", "-lc", "-ec", "-cl", "-c -l", "-o pipefail -c", "-eo pipefail -c", "-oc pipefail", "-c -o pipefail",
        "+o posix -c", "--login -c", "--norc -c", "-norc -c", "--rcfile /dev/null -c", "--noprofile --norc -lc",
        "-O extglob -c", "+O extglob -c", "-c --", "-c -", "-s -c", "+e -c",
    ],
)  # fmt: skip
def test_every_spelling_of_minus_c_that_bash_takes(options: str) -> None:
    argv = ["bash", *options.split(), "echo $0 is it", "name"]
    assert subprocess.run(argv, capture_output=True, text=True, check=False).stdout == "name is it\n"
    found = analyse(argv, False)
    assert (found.kind, found.text) == ("command", "echo $0 is it")


@pytest.mark.parametrize("options", ["-c", "-ec", "-c -e", "-o errexit -c", "-oc errexit", "-c --", "-s -c", "+e -c"])
def test_every_spelling_of_minus_c_that_dash_takes(options: str) -> None:
    argv = ["dash", *options.split(), "echo $0 is it", "name"]
    assert subprocess.run(argv, capture_output=True, text=True, check=False).stdout == "name is it\n"
    assert analyse(argv, False).text == "echo $0 is it"


@pytest.mark.parametrize(
    ("argv", "kind", "text"),
    [
        (["-bash"], "shell", ""),
        (["bash", "-i"], "shell", ""),
        (["bash", "-s", "a", "b"], "shell", ""),
        (["bash", "--login", "-i"], "shell", ""),
        ([], "shell", ""),
        (["sh", "run.sh", "-c", "x"], "script", "run.sh"),
        (["/bin/bash", "-e", "./build.sh"], "script", "./build.sh"),
        (["bash", "--", "-c"], "script", "-c"),
        (["bash", "-", "a.sh"], "script", "a.sh"),
        (["bash", "--rcfile"], "shell", ""),
        (["bash", "-o"], "shell", ""),
        (["bash", "-c"], "command", ""),
    ],
)
def test_the_kind_of_a_call(argv: list[str], kind: str, text: str) -> None:
    found = analyse(argv, False)
    assert (found.kind, found.text) == (kind, text)


WORDS = [
    ("pytest -x", "pytest", "pytest"),
    ("A=1 B='x y' pytest", "pytest", "pytest"),
    ("cd /repo && pytest", "pytest", "pytest"),
    ("cd $(git rev-parse --show-toplevel) && pytest", "pytest", "pytest"),
    ("cd /x || exit 1; make -j 8 -C dir test", "make", "make test"),
    ("cd /x || { echo no; exit 1; }; make", "make", "make"),
    ("# first\n\n  make", "make", "make"),
    ("set -euo pipefail\ncd /x\nuv run pytest -q", "uv", "uv run pytest"),
    ("export A=1; npm run test", "npm", "npm run test"),
    ("sudo -u bob nice -n 5 timeout -k 5 60 git -C /x status", "git", "git status"),
    ("env -u X A=1 /usr/bin/python3.11 -m pytest", "python3.11", "python -m pytest"),
    ("exec -a name node server.js", "node", "node server.js"),
    ("time -p cargo +nightly test", "cargo", "cargo test"),
    ("/usr/bin/time -f %e cargo build", "cargo", "cargo build"),
    ("for i in 1 2; do pytest $i; done", "pytest", "pytest"),
    ("if [ -f x ]; then go test ./...; fi", "go", "go test"),
    ("[[ -f a && -d b ]] && make", "make", "make"),
    ("(cd x && tox -e py311)", "tox", "tox"),
    ("echo '{}' | jq .", "jq", "jq"),
    ("echo === && ls", "ls", "ls"),
    ("cat <<EOF > x\nhello\nEOF\npytest", "cat", "cat"),
    ("python3 - <<'EOF'\nprint(1)\nEOF", "python3", "python -"),
    ("python3 -W ignore scripts/run.py --x", "python3", "python run.py"),
    ("bash -lc 'pytest'", "bash", "bash -c"),
    ("docker compose up -d", "docker", "docker compose up"),
    ("./gradlew :app:test", "gradlew", "gradlew :app:test"),
    ("pip3 install .", "pip3", "pip install"),
    ("sudo apt-get -o A=b install -y x", "apt-get", "apt-get install"),
    ("command -v pytest", "command", "command"),
    ("2>/dev/null ls", "ls", "ls"),
    ("cd /x", "cd", "cd"),
    ("env", "env", "env"),
    ("$PYTHON x.py", "other", "other"),
    ("f() { pytest; }; f", "other", "other"),
    ("((x++))", "other", "other"),
    ("A=(1 2) pytest", "other", "other"),
    ("'unclosed", "other", "other"),
    ("", "other", "other"),
    ("./my tool", "my", "my"),
    ("'./my tool'", "other", "other"),
    ("caf\u00e9", "other", "other"),
    ("a" * 65, "other", "other"),
]


@pytest.mark.parametrize(("text", "word", "of_class"), WORDS)
def test_the_first_real_word_and_the_class(text: str, word: str, of_class: str) -> None:
    found = command(text)
    assert (found.first_word, found.command_class) == (word, of_class)


HINTS = [
    (f"{HINT_NAME}=memory:2g pytest", "memory:2g"),
    (f"A=1 {HINT_NAME}='memory:2g cpu:high' B=2 pytest", "memory:2g cpu:high"),
    (f'{HINT_NAME}="memory:2g;cpu:high" pytest', "memory:2g;cpu:high"),
    (rf"{HINT_NAME}=memory\:2g\,cpu\=high pytest", "memory:2g,cpu=high"),
    (f"{HINT_NAME}=mem'ory':\"2\"g pytest", "memory:2g"),
    (f"{HINT_NAME}=memory:1g {HINT_NAME}=memory:2g pytest", "memory:2g"),
    (f"export {HINT_NAME}=memory:2g; pytest", "memory:2g"),
    (f"export A=1 {HINT_NAME}='memory:2g' && pytest", "memory:2g"),
    (f"{HINT_NAME}=memory:2g; pytest", "memory:2g"),
    (f"cd /repo && {HINT_NAME}=memory:2g pytest", "memory:2g"),
    (f"env {HINT_NAME}=memory:2g pytest", "memory:2g"),
    (f"env -u X '{HINT_NAME}=memory:2g' pytest", "memory:2g"),
    (f"timeout 60 env {HINT_NAME}=memory:2g pytest", "memory:2g"),
    (f"time {HINT_NAME}=memory:2g pytest", "memory:2g"),
    (f"A=$(x 'a )' \"$(y)\") {HINT_NAME}=memory:2g pytest", "memory:2g"),
    (f"A=`x \\` y` B=${{C:-d}} {HINT_NAME}=memory:2g pytest", "memory:2g"),
    (f"# note\n\t{HINT_NAME}=memory:2g \\\n pytest", "memory:2g"),
    (f">/dev/null {HINT_NAME}=memory:2g 2>&1 pytest", "memory:2g"),
    (f"{HINT_NAME}= pytest", ""),
    (f"'{HINT_NAME}=memory:2g' pytest", None),
    (f'"{HINT_NAME}"=memory:2g pytest', None),
    (f"pytest {HINT_NAME}=memory:2g", None),
    (f"pytest; {HINT_NAME}=memory:2g ls", None),
    (f"echo '{HINT_NAME}=memory:2g'", None),
    (f"# {HINT_NAME}=memory:2g\npytest", None),
    (f"X{HINT_NAME}=memory:2g pytest", None),
    (f"cd /x || {HINT_NAME}=memory:2g ls; pytest", None),
]


@pytest.mark.parametrize(("text", "value"), HINTS)
def test_the_hint_in_front_of_the_command(text: str, value: str | None) -> None:
    assert (command(text).hint, command(text).problems) == (value, ())


@pytest.mark.parametrize(
    "value",
    ["$X", "memory:${X}g", "$(rm -rf /)", "`id`", '"memory:$X"', "~", "memory:~", "a~b:~", "$'memory:2g'", '"`id`"'],
)
def test_an_expansion_in_the_hint_is_a_problem_and_never_a_value(value: str) -> None:
    found = command(f"{HINT_NAME}={value} pytest")
    assert (found.hint, found.first_word) == (None, "pytest")
    assert found.problems == (f"{HINT_NAME} holds an expansion, which is not evaluated: write the value itself",)


def test_a_hint_in_text_that_is_not_followed_is_a_problem() -> None:
    found = command(f"{HINT_NAME}=memory:1g A=(1 2) {HINT_NAME}=memory:2g pytest")
    assert found.hint is None
    assert found.problems == (f"{HINT_NAME} stands in shell text that is not followed: put it first",)


def test_a_hint_that_the_cut_may_have_shortened_is_a_problem() -> None:
    argv = ["bash", "-c", f"{HINT_NAME}=memory:12"]
    assert analyse(argv, False).hint == "memory:12"
    cut = analyse(argv, True)
    assert (cut.hint, cut.problems) == (None, (f"{HINT_NAME} stands where the command text was cut: put it first",))
    assert analyse([*argv, "an argument after it"], True).hint == "memory:12"
    assert analyse(["bash", "-c", f"{HINT_NAME}=memory:12 pytes"], True).first_word == "other"


def test_another_hint_takes_the_place_of_the_old_one() -> None:
    for text, expected in (
        ("pytest -x", "H=new pytest -x"),
        ("A=1 H=old B=2 pytest", "A=1 H=new B=2 pytest"),
        ("cd /x && H=$OLD pytest", "cd /x && H=new pytest"),
        ("env 'H=old' pytest", "env H=new pytest"),
    ):
        found = command(text.replace("H=", f"{HINT_NAME}="))
        assert found.with_hint("new") == expected.replace("H=", f"{HINT_NAME}=")


def test_the_same_command_under_another_hint_has_the_same_bare_text() -> None:
    texts = ("pytest -x", f"{HINT_NAME}=memory:1g pytest -x", f" {HINT_NAME}='memory:2g'  pytest -x")
    assert {command(text).bare for text in texts} == {"pytest -x"}


PATHOLOGICAL = [
    "time ", "nice ", "env ", "env A=1 ", ":;", "$(", "${", "((", '"$(', "'", '"', "`", "\\", f"{HINT_NAME}=x ", "<a ",
    "\n", "#\n", "[[ && ", "\\\n", "$(c ", "~:", "A=$(x) ", "x ", "if ", "cd x||", '${a:-"', 'a"b"', "git -c x ", "1<",
]  # fmt: skip


@pytest.mark.parametrize(("head", "piece"), product(("", "A=$(", 'A="', "git "), PATHOLOGICAL))
def test_a_hostile_text_takes_linear_time(head: str, piece: str) -> None:
    text = (head + piece * MAX_TEXT)[: 64 * MAX_TEXT]
    began = time.process_time()
    command(text)
    assert time.process_time() - began < 0.5


def test_a_text_beyond_the_bound_is_cut_and_said_to_be() -> None:
    found = command(f"{HINT_NAME}=" + "x" * MAX_TEXT)
    assert len(found.text) == MAX_TEXT
    assert found.hint is None and found.problems
