#!/usr/bin/env bash
# Writes constraints-gpu.txt anew: the versions of vLLM's engine on a GPU, those of constraints.txt where vLLM allows them.
# It asks a package index and downloads no package; it needs uv (pip install uv).
set -euo pipefail
cd "$(dirname "$0")/.."
lock=$(mktemp) cuda=$(mktemp) any=$(mktemp)
trap 'rm -f "$lock" "$cuda" "$any"' EXIT
grep -vE '^(cuda-|nvidia-|torch|triton)' constraints.txt >"$lock" # uv keeps the versions of the file that it writes to
echo 'cuda-python>=13' >"$cuda"                                   # flashinfer would go with that of CUDA 12 too
echo certifi >"$any" # vLLM asks for one that not every index has; it holds certificates, nothing that scores
uv pip compile pyproject.toml --extra vllm --extra serve --extra ray --constraint "$cuda" --override "$any" \
    --python-version 3.12 --python-platform x86_64-manylinux_2_28 --no-annotate --no-header --quiet --output-file "$lock"
{
    echo "# The environment of vLLM's engine on a GPU (CUDA 13.0, x86-64 Linux, Python 3.11 to 3.13), made by scripts/lock.sh."
    echo "# Install it whole: pip install --no-deps -r constraints-gpu.txt. certifi may be older than vLLM's metadata ask for."
    cat "$lock"
} >constraints-gpu.txt
