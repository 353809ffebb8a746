"""Single fields of a policy replaced by annotations: read, compared with what they replace, and checked again."""

from pathlib import Path

import pytest
from agentcgroup.errors import UserError
from agentcgroup.policy.annotations import apply_overrides
from agentcgroup.policy.load import load_policies
from agentcgroup.policy.model import GIB, MIB, Call, Memory, Policy, Size
from hypothesis import given
from hypothesis import strategies as st

BASE = Policy(
    "ci", memory=Memory(max=Size(percent=75.0), agent_min=Size(256 * MIB), swap_max=Size(0)), call=Call(time_max=1800.0)
)


def applied(tighten_only: bool = False, **overrides: str) -> Policy:
    return apply_overrides(BASE, {key.replace("__", "."): text for key, text in overrides.items()}, tighten_only)


def wrong(tighten_only: bool = False, **overrides: str) -> list[str]:
    with pytest.raises(UserError) as error:
        applied(tighten_only, **overrides)
    return str(error.value).splitlines()


def test_each_kind_of_value_is_read_from_its_text() -> None:
    policy = applied(
        memory__max="2G", memory__swap_max="none", cpu__max="1.5", cpu__weight="50", pids_max="none", delegate="true",
        mode="observe", tenant="42", network__egress="1M", call__on_pressure="hold, end", call__time_max="90",
        call__memory__high="50%", call__fork_rate="none", call__pids_max="64",
    )  # fmt: skip
    assert policy.memory == Memory(max=Size(2 * GIB), agent_min=Size(256 * MIB), swap_max=None)
    assert (policy.cpu.max, policy.cpu.weight, policy.pids_max, policy.delegate) == (1.5, 50, None, True)
    assert (policy.mode, policy.tenant, policy.network.egress) == ("observe", "42", MIB)
    assert (policy.call.on_pressure, policy.call.time_max, policy.call.memory.high) == (
        ("hold", "end"),
        90.0,
        Size(percent=50.0),
    )
    assert (policy.call.fork_rate, policy.call.pids_max) == (None, 64)
    assert policy.provenance["memory.max"] == "annotation agentcgroup.memory.max"
    assert BASE.memory.max == Size(percent=75.0)


@pytest.mark.parametrize(
    ("key", "text", "message"),
    [
        ("memory__max", "2g", 'memory.max: "2g" is not a size: write 2G'),
        ("memory__max", "", 'memory.max: "" is not a size: write one such as 512M or 2GiB'),
        ("cpu__weight", "heavy", 'cpu.weight: must be an integer from 1 to 10000, or none, not "heavy"'),
        ("cpu__weight", "0", "cpu.weight: must be an integer from 1 to 10000, or none, not 0"),
        ("delegate", "yes", 'delegate: must be true or false, not "yes": write true'),
        ("mode", "off", 'mode: must be observe or enforce, not "off"'),
        ("call__grace", "1y", 'call.grace: "1y" is not a duration: write one such as 90s, 5min or 1h30m'),
        ("call__on_pressure", "end,hold", "call.on_pressure: out of order: write [hold, end]"),
        (
            "memory__max", "128M",
            "memory.max: memory.agent_min 256 MiB exceeds memory.max 128 MiB (memory.agent_min: default): "
            "lower memory.agent_min or raise memory.max",
        ),
    ],
)  # fmt: skip
def test_what_an_override_may_not_say(key: str, text: str, message: str) -> None:
    assert wrong(**{key: text}) == [f"annotation agentcgroup.{message}"]


def test_all_wrong_overrides_are_reported() -> None:
    assert wrong(memory__max="x", cpu__weight="y", pids_max="100") == [
        'annotation agentcgroup.cpu.weight: must be an integer from 1 to 10000, or none, not "y"',
        'annotation agentcgroup.memory.max: "x" is not a size: write one such as 512M or 2GiB',
    ]


# --- tightening ------------------------------------------------------------------------------------------------


def test_bytes_and_a_percentage_hold_both() -> None:
    """Which is smaller is known only when the container is there."""
    policy = applied(True, memory__max="2G")
    assert policy.memory.max == Size(2 * GIB, 75.0)
    assert (policy.memory.max.of(GIB), policy.memory.max.of(100 * GIB)) == (int(0.75 * GIB), 2 * GIB)


@pytest.mark.parametrize(
    ("key", "text"),
    [
        ("memory__max", "50%"), ("memory__max", "75%"), ("memory__high", "1G"), ("memory__agent_min", "128M"),
        ("memory__agent_min", "none"), ("cpu__weight", "100"), ("cpu__weight", "none"), ("cpu__max", "64"),
        ("pids_max", "100"),
        ("mode", "enforce"), ("priority", "batch"), ("delegate", "false"), ("call__time_max", "30min"),
        ("call__orphans", "kill"), ("call__on_pressure", "throttle,hold,enomem,end"), ("call__memory__max", "1G"),
        ("network__egress", "1M"), ("tenant", "none"), ("records__command", "first"),
    ],
)  # fmt: skip
def test_a_tenant_may_tighten(key: str, text: str) -> None:
    assert applied(True, **{key: text}).provenance[key.replace("__", ".")].startswith("annotation ")


@pytest.mark.parametrize(
    ("key", "text", "message"),
    [
        ("memory__max", "76%", "memory.max: 76 % loosens the policy's 75 %: write 75 % or less"),
        ("memory__max", "none", "memory.max: none loosens the policy's 75 %: write 75 % or less"),
        ("memory__swap_max", "1G", "memory.swap_max: 1 GiB loosens the policy's 0 B: write 0 B or less"),
        ("memory__agent_min", "1G", "memory.agent_min: 1 GiB loosens the policy's 256 MiB: write 256 MiB or less"),
        ("memory__reserve", "1G", "memory.reserve: 1 GiB loosens the policy's none: remove it"),
        ("cpu__weight", "101", "cpu.weight: 101 loosens the policy's none: write 100 or less"),
        ("mode", "observe", "mode: observe loosens the policy's enforce: write enforce"),
        ("priority", "interactive", "priority: interactive loosens the policy's normal: write batch or normal"),
        ("delegate", "true", "delegate: true loosens the policy's false: write false"),
        ("call__time_max", "31min", "call.time_max: 31 min loosens the policy's 30 min: write 30 min or less"),
        ("call__time_max", "none", "call.time_max: none loosens the policy's 30 min: write 30 min or less"),
        ("call__fork_rate", "501", "call.fork_rate: 501 loosens the policy's 500: write 500 or less"),
        ("call__orphans", "keep", "call.orphans: keep loosens the policy's report: write kill or report"),
        (
            "call__on_pressure", "end",
            "call.on_pressure: end loosens the policy's throttle, hold, end: write throttle, hold, end and more",
        ),
        ("call__memory__default", "4G", "call.memory.default: 4 GiB loosens the policy's 2 GiB: write 2 GiB or less"),
        ("tenant", "other", "tenant: other loosens the policy's none: remove it"),
        ("records__command", "off", "records.command: off loosens the policy's first: remove it"),
    ],
)  # fmt: skip
def test_a_tenant_may_not_loosen(key: str, text: str, message: str) -> None:
    assert wrong(True, **{key: text}) == [f"annotation agentcgroup.{message}"]
    applied(False, **{key: text})


sizes = st.one_of(
    st.integers(MIB, 2**50).map(lambda count: Size(count)),
    st.floats(1, 100).map(lambda share: Size(percent=round(share, 3))),
)


@given(sizes, sizes, st.integers(MIB, 2**50))
def test_a_tightened_size_is_never_larger_than_the_policys(old: Size, new: Size, total: int) -> None:
    text = str(new.bytes) if new.percent is None else f"{new.percent}%"
    policy = Policy("ci", memory=Memory(max=old))
    try:
        result = apply_overrides(policy, {"memory.max": text}, True).memory.max
    except UserError:
        assert type(old.bytes) is type(new.bytes), "only comparable sizes are refused"
        assert new.of(2**50) > old.of(2**50) or (new.percent or 0) > (old.percent or 0)
    else:
        assert result is not None and result.of(total) <= old.of(total)


def test_a_packaged_policy_takes_the_usual_overrides() -> None:
    packaged = Path(__file__).resolve().parents[2] / "oci-config" / "policies.d"
    policy = load_policies([packaged]).get("coding-agent")
    usual = {"memory.max": "2G", "call.time_max": "10min", "call.memory.default": "1G", "cpu.max": "2"}
    for tighten_only in (False, True):
        assert apply_overrides(policy, usual, tighten_only).call.time_max == 600
