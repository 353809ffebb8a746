"""What a shell was asked to run, read from its argv as text: nothing is executed, expanded or looked up."""

from dataclasses import dataclass
from typing import Literal

Kind = Literal["command", "script", "shell"]


@dataclass(frozen=True)
class Command:
    """A tool call's command line.

    kind: `command` (-c), `script` (a file), `shell` (interactive or fed by stdin). text: the command text or the
    script's path. first_word: basename of the first real command, or `other`. hint: the value of its
    AGENT_RESOURCE_HINT assignment. command_class: key under which peaks are learned.
    """

    kind: Kind
    text: str = ""
    first_word: str = "other"
    command_class: str = "other"
    hint: str | None = None
    problems: tuple[str, ...] = ()
    hint_span: tuple[int, int] | None = None
