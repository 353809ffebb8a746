"""The key under which the peaks of alike commands are learned: `pytest`, `git status`, `npm run test`."""

import re
from collections.abc import Sequence

OTHER = "other"
MAX_LENGTH = 96

_WORD = re.compile(r"[A-Za-z0-9._+:@-]{1,48}")
_PYTHON = re.compile(r"(?:python|pypy)[0-9.]*")
_INTERPRETERS = frozenset(
    ("bash", "dash", "java", "julia", "lua", "node", "perl", "php", "python", "ruby", "Rscript", "sh", "ts-node", "tsx")
)

# Tools whose first word that is no option says what they do, each with its options that take a value.
_TOOLS = {
    name: frozenset(options.split())
    for name, options in (
        ("apk", ""), ("apt", "-o -c -t"), ("apt-get", "-o -c -t"), ("bazel", ""), ("bun", "--cwd"), ("bundle", ""),
        ("cargo", "--manifest-path -C --config --color"), ("composer", "-d"), ("conda", ""), ("deno", ""),
        ("dnf", ""), ("docker", "-H --host -c --context --config -l"), ("dotnet", ""), ("gh", "-R"),
        ("git", "-C -c --git-dir --work-tree"), ("go", "-C"), ("gradle", "-p -c -b"), ("gradlew", "-p -c -b"),
        ("helm", "-n"), ("hg", "-R"), ("kubectl", "-n --namespace --context --kubeconfig"), ("make", "-C -f -I -o -W"),
        ("mamba", ""), ("meson", "-C"), ("mvn", "-f -pl -P -s"), ("mvnw", "-f -pl -P -s"), ("ninja", "-C -f"),
        ("npm", "--prefix -w --workspace"), ("npx", "-p --package"), ("pdm", "-p"), ("pip", ""), ("pipenv", ""),
        ("pnpm", "-C --dir --filter -F"), ("podman", "-H --url -c --connection --root"), ("poetry", "-C -P"),
        ("rails", ""), ("rake", "-f"), ("rustup", ""), ("swift", ""), ("systemctl", "-H -M"), ("terraform", ""),
        ("tox", "-c -e"), ("uv", "--directory --project"), ("yarn", "--cwd"), ("yum", ""),
    )
}  # fmt: skip
# Subcommands that only lead on to the one that matters.
_LEADING = frozenset(("compose", "container", "exec", "image", "pip", "run", "tool", "workspace", "x"))


def of(words: Sequence[str], cut: bool = False) -> str:
    """The class of a simple command, `words[0]` being the program; "" stands for a word that is not known.

    `cut`: the last word may be incomplete, it is not used.
    """
    known = list(words[:-1] if cut and len(words) > 1 else words)[:64]
    name = _name(known[0])
    if name == OTHER:
        return OTHER
    if name in _TOOLS:
        detail = _subcommands(known[1:], _TOOLS[name])
    else:
        detail = _program(known[1:]) if name in _INTERPRETERS else []
    return " ".join([name, *detail])[:MAX_LENGTH]


def _name(word: str) -> str:
    """The program's name without its directory; versions of python and pip are one."""
    base = word.rpartition("/")[2]
    if _PYTHON.fullmatch(base):
        return "python"
    base = "pip" if re.fullmatch(r"pip[0-9.]+", base) else base
    return base if _WORD.fullmatch(base) else OTHER


def _subcommands(words: list[str], with_value: frozenset[str]) -> list[str]:
    found: list[str] = []
    at = 0
    while at < len(words):
        word = words[at]
        at += 2 if word in with_value else 1
        if word.startswith(("-", "+")) or "=" in word or word.isdigit():
            continue
        if not _WORD.fullmatch(word):
            break
        found.append(word)
        if word not in _LEADING or len(found) == 2:
            break
    return found


def _program(words: list[str]) -> list[str]:
    """What an interpreter runs: `-m MODULE`, `-c`, `-e`, `-`, `-jar FILE` or the script's name."""
    at = 0
    while at < len(words):
        word = words[at]
        if word in ("-m", "-jar") and at + 1 < len(words):
            return [word, _name(words[at + 1])]
        if word == "-" or re.fullmatch(r"-[a-zA-Z]{0,4}[ce]|--eval", word):
            return [word if word == "-" else "-c"]
        if not word.startswith("-"):
            return [_name(word)]
        at += 2 if word in ("-W", "-X", "-r", "--require", "-cp", "-classpath") else 1
    return []
