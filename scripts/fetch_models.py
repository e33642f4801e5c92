#!/usr/bin/env python
"""Collects what a configuration needs into one bundle, from a checkout; an installation has it as agentic-iqa
bundle. See --help."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from agentic_iqa_local.cli.main import main

if __name__ == "__main__":
    sys.exit(main(["bundle", *sys.argv[1:]]))
