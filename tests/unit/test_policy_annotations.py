"""What annotations choose, and what each engine's may."""

import pytest
from agentcgroup.config import Config, Overrides
from agentcgroup.errors import UserError
from agentcgroup.policy.annotations import Choice, choose, demanded
from hypothesis import given
from hypothesis import strategies as st

NAME = "io.kubernetes.container.name"
POD = {NAME: "app", "io.kubernetes.pod.name": "pod"}


def chosen(annotations: dict[str, str], engine: str = "podman", config: Config | None = None) -> Choice | None:
    return choose(annotations, engine, config or Config())


def refusal(annotations: dict[str, str], engine: str = "podman", config: Config | None = None) -> list[str]:
    with pytest.raises(UserError) as error:
        chosen(annotations, engine, config)
    return str(error.value).splitlines()


# --- which policy ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "annotations",
    [
        {"agentcgroup.policy": "batch"},
        {"agentcgroup.io/policy": "batch"},
        {"agentcgroup.policy": "batch", "agentcgroup.io/policy": "batch"},
        {"policy.agentcgroup.io/app": "batch", **POD},
        {"policy.agentcgroup.io/app": "batch", "agentcgroup.io/policy": "observe", **POD},
        {"agentcgroup.io/policy": "batch", "policy.agentcgroup.io/sidecar": "observe", **POD},
        {"agentcgroup.policy": "batch", "policy.agentcgroup.io/app": "observe"},  # no container name: podman
    ],
)
def test_the_most_specific_annotation_names_the_policy(annotations: dict[str, str]) -> None:
    assert chosen(annotations) == Choice("batch")


def test_a_policy_for_another_container_of_the_pod_is_none_of_ours() -> None:
    """Pod annotations reach every container of the pod, even those with mistakes in them."""
    others = {"policy.agentcgroup.io/other": "batch", "agentcgroup.io/nonsense": "1", "agentcgroup.required": "true"}
    assert chosen({**others, **POD}, "crio") is None


@pytest.mark.parametrize("key", ["io.kubernetes.cri-o.ContainerType", "io.kubernetes.cri.container-type"])
def test_a_policy_of_the_pod_does_not_mean_its_infra_container(key: str) -> None:
    assert chosen({"agentcgroup.policy": "batch", "agentcgroup.required": "true", key: "sandbox"}, "crio") is None
    assert chosen({"agentcgroup.policy": "batch", key: "container"}, "crio") == Choice("batch", {}, True)


@pytest.mark.parametrize(
    ("annotations", "message"),
    [
        (
            {"agentcgroup.policy": "batch", "agentcgroup.io/policy": "observe"},
            'annotation agentcgroup.policy: agentcgroup.io/policy says "observe": keep one of the two',
        ),
        (
            {"agentcgroup.policy": "../etc/passwd"},
            'annotation agentcgroup.policy: "../etc/passwd" is not a policy\'s name: see `agentcgroup policy list`',
        ),
        (
            {"policy.agentcgroup.io/app": "", **POD},
            'annotation policy.agentcgroup.io/app: "" is not a policy\'s name: see `agentcgroup policy list`',
        ),
        ({}, "no policy is named for this container: add agentcgroup.policy=NAME"),
        (
            {"policy.agentcgroup.io/app": "batch"},
            "no policy is named for this container: add agentcgroup.policy=NAME "
            "(policy.agentcgroup.io/CONTAINER needs an engine that sets io.kubernetes.container.name)",
        ),
    ],
)
def test_a_policy_that_cannot_be_told(annotations: dict[str, str], message: str) -> None:
    assert refusal(annotations) == [message]


@pytest.mark.parametrize("key", ["agentcgroup.required", "agentcgroup.io/required"])
@pytest.mark.parametrize("beside", [{}, {"agentcgroup.call.time_max": "garbage"}, {"agentcgroup.mod": "x"}])
def test_what_is_demanded_does_not_depend_on_the_other_annotations(key: str, beside: dict[str, str]) -> None:
    assert demanded({"agentcgroup.policy": "batch", **beside}) == ("batch", False)
    assert demanded({"agentcgroup.policy": "batch", key: "true", **beside}) == ("batch", True)
    assert demanded({"policy.agentcgroup.io/app": "batch", key: "true", **beside, **POD}) == ("batch", True)
    assert demanded(beside) == (None, False)
    assert chosen({"agentcgroup.policy": "batch", key: "false"}) == Choice("batch")
    assert refusal({"agentcgroup.policy": "batch", key: "yes"}) == [
        f'annotation {key}: must be true or false, not "yes"'
    ]


def test_a_name_for_people_is_not_an_override() -> None:
    assert chosen({"agentcgroup.policy": "batch", "agentcgroup.name": "build 7"}) == Choice("batch")


# --- which fields ----------------------------------------------------------------------------------------------


def test_overrides_by_dotted_key_in_both_spellings() -> None:
    annotations = {
        "agentcgroup.policy": "batch",
        "agentcgroup.memory.max": "2G",
        "agentcgroup.io/call.time_max": "10min",
        "io.podman.annotations.autoremove": "TRUE",
        "other.io/memory.max": "1G",
    }
    assert chosen(annotations) == Choice("batch", {"memory.max": "2G", "call.time_max": "10min"})


@pytest.mark.parametrize(
    ("key", "message"),
    [
        ("agentcgroup.memory.maximum", "unknown key: did you mean agentcgroup.memory.max?"),
        ("agentcgroup.io/polcy", "unknown key: did you mean agentcgroup.io/policy?"),
        ("agentcgroup.xyzzy", "unknown key: docs/policy.md lists them"),
        ("agentcgroup.rules", "only a policy file can set this: add it to the policy"),
        ("agentcgroup.shells", "only a policy file can set this: add it to the policy"),
        ("agentcgroup.extends", "unknown key: docs/policy.md lists them"),
    ],
)
def test_a_key_that_is_no_single_field(key: str, message: str) -> None:
    assert refusal({"agentcgroup.policy": "batch", key: "1"}) == [f'annotation "{key}": {message}']


def test_all_mistakes_are_reported() -> None:
    assert refusal({"agentcgroup.policy": "a b", "agentcgroup.required": "1", "agentcgroup.mod": "x"}) == [
        'annotation "agentcgroup.mod": unknown key: did you mean agentcgroup.mode?',
        'annotation agentcgroup.policy: "a b" is not a policy\'s name: see `agentcgroup policy list`',
        'annotation agentcgroup.required: must be true or false, not "1"',
    ]


def test_what_each_engine_may_do() -> None:
    annotations = {"agentcgroup.policy": "batch", "agentcgroup.memory.max": "2G"}
    levels = {engine: chosen(annotations, engine) for engine in ("podman", "crio")}
    assert {engine: choice and choice.tighten_only for engine, choice in levels.items()} == {
        "podman": False,
        "crio": True,
    }
    assert refusal(annotations, "other") == [
        "annotation agentcgroup.memory.max: not allowed here (agentcgroup.yaml: overrides.other: none): "
        "change the policy"
    ]
    assert chosen({"agentcgroup.policy": "batch"}, "other") == Choice("batch", tighten_only=True)
    assert refusal(annotations, "containerd") == refusal(annotations, "other"), "an unknown engine is `other`"


def test_a_tenant_may_name_only_allowed_policies() -> None:
    config = Config(allowed_policies=("coding-agent", "batch"))
    assert chosen({"agentcgroup.policy": "batch"}, "crio", config) == Choice("batch", tighten_only=True)
    assert chosen({"agentcgroup.policy": "mine"}, "podman", config) == Choice("mine")
    assert refusal({"agentcgroup.policy": "bach"}, "crio", config) == [
        'policy "bach" is not among allowed_policies of agentcgroup.yaml: did you mean "batch"?'
    ]
    assert refusal({"agentcgroup.policy": "xyzzy"}, "crio", config) == [
        'policy "xyzzy" is not among allowed_policies of agentcgroup.yaml: allowed: coding-agent, batch'
    ]
    strict = Config(overrides=Overrides(podman="tighten"), allowed_policies=())
    assert refusal({"agentcgroup.policy": "batch"}, "podman", strict) == [
        'policy "batch" is not among allowed_policies of agentcgroup.yaml: allowed: none'
    ]


@given(st.dictionaries(st.text(max_size=8).map(lambda key: f"agentcgroup.{key}"), st.text(max_size=20), max_size=5))
def test_any_annotations_are_chosen_from_or_refused(annotations: dict[str, str]) -> None:
    try:
        assert chosen({"agentcgroup.policy": "batch", **annotations}, "crio") is not None
    except UserError as error:
        assert len(str(error).splitlines()) <= 7
