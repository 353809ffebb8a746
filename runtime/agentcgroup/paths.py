"""Where things are on a host, in one place. docs/architecture.md says who writes what."""

from pathlib import Path

RUN_DIR = Path("/run/agentcgroup")
LIB_DIR = Path("/var/lib/agentcgroup")
LOG_DIR = Path("/var/log/agentcgroup")
# `make install PREFIX=/usr/local` is for hosts whose /usr is read-only.
_LOCAL = Path("/usr/local/share/agentcgroup")
SHARE_DIR = _LOCAL if _LOCAL.is_dir() else Path("/usr/share/agentcgroup")
BPF_DIR = SHARE_DIR / "bpf"
LIBEXEC_DIR = SHARE_DIR.parents[1] / "libexec/agentcgroup"
CONFIG_DIR = Path("/etc/agentcgroup")
CONFIG_FILE = CONFIG_DIR / "agentcgroup.yaml"

# Later directories win by name: the vendor's files, then the administrator's.
POLICY_DIRS = (SHARE_DIR / "policies.d", CONFIG_DIR / "policies.d")


def data_dir() -> Path:
    """The directory that holds `schemas/`: where it was installed, or oci-config/ when run from a checkout."""
    checkout = Path(__file__).resolve().parents[2] / "oci-config"
    return checkout if (checkout / "schemas").is_dir() else SHARE_DIR
