"""What the packages say of themselves is what the product says."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from agentcgroup import __version__

ROOT = Path(__file__).resolve().parents[2]
SPEC = (ROOT / "packaging" / "rpm" / "agentcgroup.spec").read_text()


def test_all_name_one_version() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert {__version__, project, *re.findall(r"^Version: +(.+)$", SPEC, re.MULTILINE)} == {project}


def test_the_hook_goes_before_what_it_names_and_only_on_the_last_erase() -> None:
    """Engines refuse to start containers while a JSON names a hook that is gone."""
    preun = SPEC[SPEC.index("%preun\n") : SPEC.index("%postun\n")]
    last = re.findall(r"if \[ \$1 -eq 0 \]; then\n(.*?)\nfi", preun, re.DOTALL)
    assert [line.strip() for line in last[0].splitlines()] == ["rm -f %{hook}"]
    assert "bpf detach" in last[1] and preun.index("rm -f %{hook}") < preun.index("%systemd_preun")
    assert preun.index("%systemd_preun") < preun.index("bpf detach")
