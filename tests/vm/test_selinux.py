"""The policy module is one that the reference policy takes, with each rule for what that policy has. The VM runs
without SELinux: what was run under it is in docs/install.md.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
from podman import run

MODULE = Path("/usr/share/selinux/packages/agentcgroup.cil")
MODULES = "var/lib/selinux/default/active/modules/100"
#: The module for containers, and what it and the base module need; all of Debian's would take a minute.
NEEDED = ("base", "clock", "container", "getty", "iptables", "lvm", "xdg", "xserver")
FEDORAS = "agentcgroup_daemon"


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A store of policy modules that is not the VM's."""
    for name in NEEDED:
        shutil.copytree(f"/{MODULES}/{name}", tmp_path / MODULES / name)
    shutil.copytree("/etc/selinux", tmp_path / "etc/selinux")
    return tmp_path


def test_the_reference_policy_takes_every_rule_but_fedoras(store: Path) -> None:
    text = MODULE.read_text()
    blocks = re.findall(r"^\(optional (\w+)$", text, re.MULTILINE)
    assert FEDORAS in blocks and len(blocks) > 2
    strict = re.sub(rf"^\(optional (?!{FEDORAS}$)", "(block ", text, flags=re.MULTILINE)  # nothing may be left out
    (store / MODULE.name).write_text(strict)
    run("semodule", "-n", "-p", str(store), "-s", "default", "-i", str(store / MODULE.name))
    [policy] = (store / "etc/selinux/default/policy").iterdir()
    labels = ("agentcgroup_run_t", "agentcgroup_procs_t", "agentcgroup_socket_t")
    assert all(label.encode() in policy.read_bytes() for label in labels)
    contexts = (store / "etc/selinux/default/contexts/files/file_contexts").read_text()
    assert "/run/agentcgroup(/.*)?\tsystem_u:object_r:agentcgroup_run_t:s0\n" in contexts
