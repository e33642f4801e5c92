#!/usr/bin/env bash
# What the code is checked for without running it: style, unused and undefined names, formatting, functions that decide
# too much, which part may import which, and types.
#   bash scripts/with_env.sh bash scripts/lint.sh
set -uo pipefail
cd "$(dirname "$0")/.."
failed=0
ruff check --no-cache agentic_iqa_local scripts tests || failed=1
ruff format --no-cache --check --quiet agentic_iqa_local scripts tests || failed=1
python scripts/branches.py agentic_iqa_local || failed=1
lint-imports --no-cache || failed=1
basedpyright --level error || failed=1
exit $failed
