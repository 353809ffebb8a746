"""What a container's annotations choose: which policy, which single fields of it, and whether it is required.

Whoever writes annotations may be a tenant, so agentcgroup.yaml says per engine what they may do (`overrides`).

    agentcgroup.policy=NAME                     agentcgroup.io/policy: NAME
    agentcgroup.required=true                   agentcgroup.io/required: "true"
    agentcgroup.call.time_max=10min             agentcgroup.io/call.time_max: 10min
    policy.agentcgroup.io/CONTAINER: NAME       for one container of a pod, and before the other forms
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from agentcgroup.config import Config
from agentcgroup.policy.document import FileError
from agentcgroup.policy.fields import FIELDS
from agentcgroup.policy.load import NAME
from agentcgroup.policy.overrides import apply_overrides as apply_overrides
from agentcgroup.policy.schema import nearest
from agentcgroup.units import quoted

PREFIXES = ("agentcgroup.io/", "agentcgroup.")  # the longer first
CONTAINER_PREFIX = "policy.agentcgroup.io/"
CONTAINER_NAME = "io.kubernetes.container.name"
CONTAINER_TYPES = ("io.kubernetes.cri-o.ContainerType", "io.kubernetes.cri.container-type")  # CRI-O's, containerd's

SINGLE = frozenset(key for key, entry in FIELDS.items() if entry.single)
SPECIAL = ("policy", "required", "name")  # `name` is what people call the container


@dataclass(frozen=True, slots=True)
class Choice:
    """`overrides` maps a dotted key of the policy to its text; `tighten_only`: they may only lower limits."""

    policy_name: str
    overrides: Mapping[str, str] = field(default_factory=dict)
    tighten_only: bool = False


def choose(annotations: Mapping[str, str], engine: str, config: Config) -> Choice | None:
    """The choice of one container; None if policies are named only for others of its pod.

    `engine` is podman, docker, crio or other. Raises UserError with a line for each annotation that is wrong or not
    allowed.
    """
    ours, problems = _ours(annotations)
    if _is_sandbox(annotations) or _for_others(annotations, ours):
        return None
    name = _policy_name(annotations, ours, problems)
    problems += _ill_required(ours)
    wanted = {key: text for key, (_, text) in ours.items() if key not in SPECIAL}
    level = config.overrides.of(engine)
    problems += _forbidden(name, [ours[key][0] for key in wanted], engine, config)
    if problems or name is None:
        raise FileError(problems)
    return Choice(name, wanted, level != "all")


def demanded(annotations: Mapping[str, str]) -> tuple[str | None, bool]:
    """The policy named for this container, and whether an annotation requires one; however wrong the others are."""
    ours, _ = _ours(annotations)
    return _policy_name(annotations, ours, []), any(annotations.get(f"{p}required") == "true" for p in PREFIXES)


def _ours(annotations: Mapping[str, str]) -> tuple[dict[str, tuple[str, str]], list[str]]:
    """Our annotations as {dotted key: (annotation, text)}, and what is wrong with their keys."""
    found: dict[str, tuple[str, str]] = {}
    problems: list[str] = []
    for name, text in sorted(annotations.items()):
        prefix = next((prefix for prefix in PREFIXES if name.startswith(prefix)), None)
        if prefix is None:
            continue
        key = name.removeprefix(prefix)
        if key not in SINGLE and key not in SPECIAL:
            problems.append(f"annotation {quoted(name)}: {_unknown(key, prefix)}")
        elif key in found and found[key][1] != text:
            problems.append(f"annotation {name}: {found[key][0]} says {quoted(found[key][1])}: keep one of the two")
        else:
            found[key] = (name, text)
    return found, problems


def _unknown(key: str, prefix: str) -> str:
    if key in FIELDS:
        return "only a policy file can set this: add it to the policy"
    near = nearest(key, [*SPECIAL, *sorted(SINGLE)])
    return f"unknown key: did you mean {prefix}{near}?" if near else "unknown key: docs/policy.md lists them"


def _is_sandbox(annotations: Mapping[str, str]) -> bool:
    """Whether it is the infra container of a pod, which the pod's annotations reach as well."""
    return "sandbox" in (annotations.get(key) for key in CONTAINER_TYPES)


def _for_others(annotations: Mapping[str, str], ours: Mapping[str, tuple[str, str]]) -> bool:
    """Whether policies are named, and each is for another container of the pod."""
    container = annotations.get(CONTAINER_NAME)
    named = any(name.startswith(CONTAINER_PREFIX) for name in annotations)
    return named and container is not None and _mine(annotations) not in annotations and "policy" not in ours


def _mine(annotations: Mapping[str, str]) -> str:
    return CONTAINER_PREFIX + annotations.get(CONTAINER_NAME, "")


def _policy_name(
    annotations: Mapping[str, str], ours: Mapping[str, tuple[str, str]], problems: list[str]
) -> str | None:
    mine = _mine(annotations)
    if mine not in annotations and "policy" not in ours:
        problems.append(f"no policy is named for this container: add agentcgroup.policy=NAME{_unnamed(annotations)}")
        return None
    source, name = (mine, annotations[mine]) if mine in annotations else ours["policy"]
    if not NAME.fullmatch(name):
        problems.append(f"annotation {source}: {quoted(name)} is not a policy's name: see `agentcgroup policy list`")
    return name


def _unnamed(annotations: Mapping[str, str]) -> str:
    lost = CONTAINER_NAME not in annotations and any(name.startswith(CONTAINER_PREFIX) for name in annotations)
    return f" ({CONTAINER_PREFIX}CONTAINER needs an engine that sets {CONTAINER_NAME})" if lost else ""


def _ill_required(ours: Mapping[str, tuple[str, str]]) -> list[str]:
    source, text = ours.get("required", ("", "false"))
    return [] if text in ("true", "false") else [f"annotation {source}: must be true or false, not {quoted(text)}"]


def _forbidden(name: str | None, overrides: list[str], engine: str, config: Config) -> list[str]:
    """What this engine's annotations may not say."""
    level = config.overrides.of(engine)
    problems = []
    if level == "none" and overrides:
        where = f"agentcgroup.yaml: overrides.{config.overrides.key(engine)}: none"
        problems = [f"annotation {key}: not allowed here ({where}): change the policy" for key in overrides]
    allowed = config.allowed_policies
    if level != "all" and allowed is not None and name is not None and name not in allowed:
        close = nearest(name, allowed)
        advice = f"did you mean {quoted(close)}?" if close else f"allowed: {', '.join(allowed) or 'none'}"
        problems.append(f"policy {quoted(name)} is not among allowed_policies of agentcgroup.yaml: {advice}")
    return problems
