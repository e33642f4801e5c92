#!/usr/bin/env python
"""Studies the agent on images with human scores, from a checkout; an installation has it as agentic-iqa
study. See --help."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from agentic_iqa_local.cli.main import main

if __name__ == "__main__":
    sys.exit(main(["study", *sys.argv[1:]]))
