#!/usr/bin/env python
"""Trains and evaluates LocalNR, from a checkout. See --help."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from agentic_iqa_local.laboratory.train_local_nr import main

if __name__ == "__main__":
    sys.exit(main())
