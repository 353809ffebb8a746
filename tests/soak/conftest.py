"""The soak tests have what the tests in tests/vm have."""

import importlib.util
import sys
from pathlib import Path

VM = Path(__file__).resolve().parents[1] / "vm"
sys.path.insert(0, str(VM))
_spec = importlib.util.spec_from_file_location("vm_conftest", VM / "conftest.py")
assert _spec and _spec.loader
_module = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(_module)
globals().update({name: value for name, value in vars(_module).items() if not name.startswith("_")})
