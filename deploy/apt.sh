#!/bin/sh
# Install Debian packages as root; otherwise print the command and fail.
set -u
if ! command -v apt-get >/dev/null; then
    echo "not installed: $*; install them with the package manager of this system" >&2
    exit 1
fi
if [ "$(id -u)" -ne 0 ]; then
    echo "not installed: $*; run: sudo apt-get install -y $*" >&2
    exit 1
fi
echo "Installing $* ..." >&2
export DEBIAN_FRONTEND=noninteractive
apt-get update -qq && apt-get install -y -qq --no-install-recommends "$@" >/dev/null
