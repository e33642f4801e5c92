#!/usr/bin/env bash
# Builds the image of Dockerfile.cuda without a Docker daemon, with podman, and assesses a picture in it as it is meant to run:
# without a network, on a read-only root, as its own user. Run it as root on Debian or Ubuntu (apt install podman runc):
#   BASE=docker.io/nvidia/cuda:13.0.3-runtime-ubuntu24.04 bash scripts/build_container.sh
#   bash scripts/build_container.sh
# Without BASE the base is a bare Ubuntu 24.04, which mmdebstrap makes from an apt mirror (MIRROR; on Debian its keys are the
# package ubuntu-archive-keyring): enough for a CPU, and to see that everything builds where no registry of images is reached.
# PIP_CONF and PIP_CERT name a pip.conf for your own package index and the certificate that it calls /run/secrets/pip.crt.
# The image takes 12 GB of the storage. Its build takes two copies more below TMPDIR, and one in the storage with the driver vfs,
# which also copies the image for each run. Without --format docker the image would lose its HEALTHCHECK.
set -euo pipefail
cd "$(dirname "$0")/.."
image=agentic-iqa
base=${BASE:-localhost/agentic-iqa-base}
mirror=${MIRROR:-http://archive.ubuntu.com/ubuntu}
keys=/usr/share/keyrings/ubuntu-archive-keyring.gpg

need() { command -v "$1" >/dev/null || { echo "build_container.sh: expected the program $1: apt install $1" >&2; exit 2; }; }

make_base() {
    need mmdebstrap
    [ -f "$keys" ] || { echo "build_container.sh: expected $keys: apt install ubuntu-archive-keyring, or name BASE" >&2; exit 2; }
    pockets=()
    for suite in noble noble-updates noble-security; do
        pockets+=("deb [signed-by=$keys] $mirror $suite main universe")
    done
    mmdebstrap --quiet --variant=minbase --include=apt noble - "${pockets[@]}" | podman import --quiet - "$base" >/dev/null
}

build() {
    secrets=()
    [ -z "${PIP_CONF:-}" ] || secrets+=(--secret "id=pip.conf,src=$PIP_CONF")
    [ -z "${PIP_CERT:-}" ] || secrets+=(--secret "id=pip.crt,src=$PIP_CERT")
    podman build --isolation chroot --layers=false --format docker --build-arg "BASE=$base" "${secrets[@]}" --file Dockerfile.cuda --tag "$image" .
}

# What `docker run` at the top of Dockerfile.cuda asks for, without the card. One run, since vfs copies the image for each.
try_it() {
    podman run --rm --network none --read-only --tmpfs /tmp:exec,size=8g --shm-size 2g --entrypoint sh "$image" \
        -c 'python scripts/assess.py tests/data/sumac.png && python scripts/doctor.py --quick'
}

need podman
if [ -z "${BASE:-}" ] && ! podman image exists "$base"; then
    echo "Making a base of Ubuntu 24.04 ..." >&2
    make_base
fi
echo "Building $image on $base ..." >&2
build
podman images "$image"
try_it
