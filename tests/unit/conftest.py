"""The tests' processes take signals as those of a terminal do, whoever started us: nohup, or a shell's `&`. No property
fails because the machine is busy.
"""

import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from agentcgroup import paths
from hypothesis import settings

settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")

for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTSTP):
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, signal.SIG_DFL if number != signal.SIGINT else signal.default_int_handler)


@pytest.fixture
def run_dir(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """In the place of /run/agentcgroup, which everybody may enter."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    (folder / "containers").mkdir(mode=0o700)
    monkeypatch.setattr(paths, "RUN_DIR", folder)
    yield folder
    shutil.rmtree(folder)
