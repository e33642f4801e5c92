#!/usr/bin/env python
"""Measures what prefix sharing, engines and batching save, from a checkout. See --help."""

import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parent.parent), str(Path(__file__).resolve().parent)]

from bench.command import main  # noqa: E402 the folder beside this file

if __name__ == "__main__":
    sys.exit(main())
