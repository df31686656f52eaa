#!/bin/sh
# Installs Debian packages where it runs as root; else says what to type, and fails.
set -u
if ! command -v apt-get >/dev/null; then
    echo "not installed: $*; install them with this system's package manager" >&2
    exit 1
fi
if [ "$(id -u)" -ne 0 ]; then
    echo "not installed: $*; to have them: sudo apt-get install -y $*" >&2
    exit 1
fi
echo "Installing $* ..." >&2
export DEBIAN_FRONTEND=noninteractive
apt-get update -qq && apt-get install -y -qq --no-install-recommends "$@" >/dev/null
