#!/bin/sh
# Build an example image with Docker or Podman, after the base image that it needs:
#   workloads/wattline_workloads/jobs/containers/images/build.sh NAME|all [options of the engine's build command]
# ENGINE selects another engine command, such as ENGINE='podman --remote'.
set -eu
cd "$(dirname "$0")"
all="dummy gpu-base mnist synthetic-regression stemdl-1gpu stemdl-2gpu mantid-1 mantid-4 mantid-5 mantid-8"

if [ $# -eq 0 ]; then
    echo "usage: $0 NAME|all [options of the engine's build command]; names: $all" >&2
    exit 2
fi
name=$1
shift

if [ -z "${ENGINE:-}" ]; then
    for ENGINE in docker podman ""; do
        if [ -n "$ENGINE" ] && command -v "$ENGINE" >/dev/null; then break; fi
    done
fi
if [ -z "$ENGINE" ]; then
    echo "no container engine found: docker and podman are not installed; install one, or set ENGINE" >&2
    exit 1
fi

build() { # NAME FOLDER [options]
    tag=localhost/wattline/$1
    folder=$2
    shift 2
    echo "Building $tag ..." >&2
    # shellcheck disable=SC2086  # ENGINE may be a command with options
    $ENGINE build --tag "$tag" "$@" "$folder"
}

with_gpu_base() {
    build gpu-base gpu-base
    build "$@"
}

case $name in
    all)
        for each in $all; do ENGINE=$ENGINE "./$(basename "$0")" "$each" "$@"; done
        ;;
    dummy | gpu-base) build "$name" "$name" "$@" ;;
    mnist | synthetic-regression) with_gpu_base "$name" "$name" "$@" ;;
    stemdl-1gpu) with_gpu_base "$name" stemdl --build-arg GPUS=1 "$@" ;;
    stemdl-2gpu) with_gpu_base "$name" stemdl --build-arg GPUS=2 "$@" ;;
    mantid-1 | mantid-4 | mantid-5 | mantid-8) build "$name" mantid --build-arg SIZE="${name#mantid-}" "$@" ;;
    *)
        echo "unknown image $name; names: $all" >&2
        exit 2
        ;;
esac
