#!/usr/bin/env bash
# Every check: of the code as text, the tests of the project, and those of the vLLM engine in the environment that adds it.
# Arguments go to both runs of tests.
#   bash scripts/test.sh
#   bash scripts/test.sh -x --durations=0
#   bash scripts/test.sh --gpu-lock      both runs of tests on the versions of a GPU server (constraints-gpu.txt), on this CPU
# A failure in one does not keep the next from running; the exit status tells of all.
set -uo pipefail
trap 'exit 130' INT
cd "$(dirname "$0")/.."
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}
lock=() with_engine=--vllm-cpu
if [ "${1:-}" = --gpu-lock ]; then
    lock=(--gpu-lock) with_engine=--gpu-lock
    shift
fi
bash scripts/with_env.sh bash scripts/lint.sh
lint=$?
bash scripts/with_env.sh "${lock[@]}" pytest -n 2 --dist loadfile --ignore tests/vllm_engine "$@"  # two files at a time
project=$?
bash scripts/with_env.sh "$with_engine" python -m pytest tests/vllm_engine "$@"
engine=$?
said() { if [ "$1" = 0 ]; then echo passed; else echo "FAILED (exit status $1)"; fi; }
echo "code: $(said $lint); tests of the project: $(said $project); tests of the vLLM engine: $(said $engine)"
exit $((lint ? lint : project ? project : engine))
