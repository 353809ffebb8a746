"""agentcgroup.yaml: defaults, every key, and mistakes named with their line."""

from pathlib import Path

import pytest
from agentcgroup.config import FIELDS, Budget, Config, MetricsAddress, Overrides, Records, load
from agentcgroup.errors import UserError
from agentcgroup.policy.model import GIB, MIB, Size


@pytest.fixture(autouse=True)
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def loaded(text: str) -> Config:
    Path("agentcgroup.yaml").write_text(text)
    return load(Path("agentcgroup.yaml"))


def problems(text: str) -> list[str]:
    with pytest.raises(UserError) as error:
        loaded(text)
    return str(error.value).splitlines()


def test_without_a_file_the_defaults_hold() -> None:
    config = load(Path("nowhere.yaml"))
    assert config == Config()
    assert (config.ack_ms, config.pool, config.overrides.crio, config.allowed_policies) == (200, 8, "tighten", None)
    assert config.provenance == dict.fromkeys(FIELDS, "default")


@pytest.mark.parametrize("text", ["", "# all defaults\n", "records:\nbudget:\n"])
def test_an_empty_file_is_the_defaults(text: str) -> None:
    assert loaded(text) == Config()


def test_every_key_is_read() -> None:
    config = loaded("""\
ack_ms: 2000
pool: 16
max_containers: 10
max_connections: 20
call_rate: 30
call_burst: 40
records: {dir: /srv/ledger, max_size: 1GiB, keep: 0}
overrides: {podman: tighten, docker: none, crio: none, other: all}
allowed_policies: [coding-agent, batch]
budget: {memory: 80%, margin: 0, wait_max: 0, ageing: 90s}
bpf: true
scheduler: partial
log_level: debug
metrics: unix:/run/x.sock
""")
    assert config == Config(
        ack_ms=2000, pool=16, max_containers=10, max_connections=20, call_rate=30, call_burst=40,
        records=Records(Path("/srv/ledger"), GIB, 0),
        overrides=Overrides("tighten", "none", "none", "all"),
        allowed_policies=("coding-agent", "batch"),
        budget=Budget(Size(percent=80.0), Size(0), 0.0, 90.0),
        bpf=True, scheduler="partial", log_level="debug", metrics=MetricsAddress(path=Path("/run/x.sock")),
    )  # fmt: skip
    assert config.provenance["records.keep"] == "agentcgroup.yaml:7"
    assert "default" not in config.provenance.values()


def test_off_is_the_word_and_not_a_switch() -> None:
    assert loaded("scheduler: off\n").scheduler == "off"


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("off", None),
        ("127.0.0.1:9753", MetricsAddress(host="127.0.0.1", port=9753)),
        ("localhost:1", MetricsAddress(host="127.0.0.1", port=1)),
        ('"[::1]:9753"', MetricsAddress(host="::1", port=9753)),
        ("unix:/run/m.sock", MetricsAddress(path=Path("/run/m.sock"))),
    ],
)
def test_where_metrics_may_be_served(text: str, address: MetricsAddress | None) -> None:
    assert loaded(f"metrics: {text}\n").metrics == address


@pytest.mark.parametrize(
    "text", ["0.0.0.0:9753", "10.0.0.1:9753", "host:80", "127.0.0.1:0", "127.0.0.1:x", "onn", ":80"]
)
def test_where_metrics_may_not_be_served(text: str) -> None:
    assert problems(f'metrics: "{text}"\n')[0].startswith(
        f'agentcgroup.yaml:1: metrics: "{text}" is neither a socket nor a loopback port: write unix:/run/agentcgroup/'
    )


@pytest.mark.parametrize(
    ("engine", "level"),
    [("podman", "all"), ("crio", "tighten"), ("other", "none"), ("docker", "all"), ("containerd", "none")],
)
def test_the_level_of_an_engine(engine: str, level: str) -> None:
    assert Overrides().of(engine) == level


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        ("ack: 1\n", 1, "ack: unknown key: did you mean ack_ms?"),
        ("keep: 1\n", 1, "keep: unknown key: did you mean records.keep?"),
        ("ack_ms: 1\n", 1, "ack_ms: must be an integer from 10 to 60000, not 1"),
        ("ack_ms: 200ms\n", 1, 'ack_ms: must be an integer from 10 to 60000, not "200ms"'),
        ("scheduler: false\n", 1, "scheduler: must be off, partial or full, not false"),
        ("overrides:\n  podman: any\n", 2, 'overrides.podman: must be all, tighten or none, not "any"'),
        ("allowed_policies: batch\n", 1, 'allowed_policies: must be a list of policy names, or any, not "batch"'),
        ("allowed_policies: [x, 'a b']\n", 1, 'allowed_policies[1]: must be the name of a policy, not "a b"'),
        (
            "records:\n  dir: logs\n", 2,
            'records.dir: "logs" is not an absolute path without ..: write one such as /var/log/agentcgroup',
        ),
        (
            "records:\n  dir: /a/../b\n", 2,
            'records.dir: "/a/../b" is not an absolute path without ..: write one such as /var/log/agentcgroup',
        ),
        ("records:\n  max_size: 64\n", 2, "records.max_size: 64 B is too small: write 1M or more"),
        ("records:\n  max_size: 64m\n", 2, 'records.max_size: "64m" is not a size: write 64M'),
        ("budget:\n  memory: 110%\n", 2, "budget.memory: 110% is more than there is: write 100% or less"),
        ("budget:\n  wait_max: 2d\n", 2, "budget.wait_max: 2 d is out of range: write 0 s to 24 h"),
        ("pool: 1\npool: 2\n", 2, "pool: given before, in line 1: keep one"),
        (
            "pool: [\n", 2,
            "not YAML: while parsing a flow node, expected the node content, but found '<stream end>': "
            "check indentation, colons and quotes",
        ),
    ],
)  # fmt: skip
def test_a_mistake_is_named_with_its_line(text: str, line: int, message: str) -> None:
    assert problems(text) == [f"agentcgroup.yaml:{line}: {message}"]


def test_all_mistakes_are_reported() -> None:
    assert problems("pool: 0\nbudget:\n  margin: 5\nlog_level: loud\n") == [
        "agentcgroup.yaml:1: pool: must be an integer from 1 to 256, not 0",
        "agentcgroup.yaml:3: budget.margin: 5 B is less than 1 MiB: write 5M if MiB are meant",
        'agentcgroup.yaml:4: log_level: must be error, warning, info or debug, not "loud"',
    ]


def test_a_file_that_cannot_be_read_is_an_error_and_no_default() -> None:
    Path("agentcgroup.yaml").mkdir()
    with pytest.raises(UserError, match="^agentcgroup.yaml: not a regular file: put the YAML text there$"):
        load(Path("agentcgroup.yaml"))
    Path("dangling.yaml").symlink_to("nowhere")
    with pytest.raises(UserError, match="^dangling.yaml: cannot be read: No such file or directory$"):
        load(Path("dangling.yaml"))


def test_defaults_are_small_enough_for_a_small_host() -> None:
    assert Config().records.max_size * (Config().records.keep + 1) <= 512 * MIB
