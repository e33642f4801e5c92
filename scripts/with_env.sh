#!/usr/bin/env bash
# Runs a command in the project's own environment, making it first where it is missing or out of date.
#   bash scripts/with_env.sh python scripts/assess.py --image photo.jpg
#   bash scripts/with_env.sh pytest
# The environment is .venv in the checkout: PYTHON (default python3, 3.11 or newer) makes it, pip fills it from
# pyproject.toml at the versions of constraints.txt. It is the only step that needs a package index.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
venv=$root/.venv
stamp=$venv/.agentic_iqa_local
want=$(cat "$root/pyproject.toml" "$root/constraints.txt" | sha256sum)
if [ ! -f "$stamp" ] || [ "$(cat "$stamp")" != "$want" ]; then
    echo "Making $venv (once, a few minutes, about 7 GB) ..." >&2
    "${PYTHON:-python3}" -m venv "$venv"
    "$venv/bin/python" -m pip install -qq --disable-pip-version-check \
        --constraint "$root/constraints.txt" --editable "$root[test]" >&2
    echo "$want" >"$stamp"
fi
# glibc otherwise hands every large buffer back to the kernel: pyiqa's float64 convolutions take several times as long.
export MALLOC_MMAP_THRESHOLD_=${MALLOC_MMAP_THRESHOLD_:-1073741824} MALLOC_TRIM_THRESHOLD_=${MALLOC_TRIM_THRESHOLD_:-2147483648}
export PATH="$venv/bin:$PATH"
exec "$@"
