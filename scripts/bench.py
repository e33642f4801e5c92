#!/usr/bin/env python
"""Measures what prefix sharing, engines and batching save, from a checkout. See --help."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from agentic_iqa_local.laboratory.bench import main

if __name__ == "__main__":
    sys.exit(main())
