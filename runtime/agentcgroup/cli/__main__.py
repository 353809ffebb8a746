"""`python3 -m agentcgroup.cli`."""

import sys

from agentcgroup.cli import main

sys.exit(main())
