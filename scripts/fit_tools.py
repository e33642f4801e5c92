#!/usr/bin/env python
"""Fits the maps from tools' raw scores to 1..5, from a checkout; an installation has it as agentic-iqa fit.
See --help."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from agentic_iqa_local.cli.fit_tools import main

if __name__ == "__main__":
    sys.exit(main())
