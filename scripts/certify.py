#!/usr/bin/env python
"""Says whether a set-up reads here what it should, from a checkout; an installation has it as agentic-iqa
certify. See --help."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from agentic_iqa_local.cli.certify import main

if __name__ == "__main__":
    sys.exit(main())
