"""python -m agentic_iqa_local COMMAND ..."""

import sys

from agentic_iqa_local.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
