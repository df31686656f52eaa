#!/bin/sh
# Install packages into a virtual environment: install.sh VENV ARGUMENTS..., with the arguments of `pip install`.
# uv installs several times faster than pip. It receives pip's settings; where it cannot install, pip does.
set -eu
python=$1/bin/python
shift
settings=$("$python" -m pip config list)

setting() {
    printf '%s\n' "$settings" | sed -n "s/^[^=]*\.$1='\(.*\)'\$/\1/p" | sed 's/\\n/ /g' | tail -n 1
}

install_with_pip() {
    "$python" -m pip install --quiet --disable-pip-version-check "$@"
}

install_with_uv() {
    "$python" -m uv --version >/dev/null 2>&1 || install_with_pip --quiet uv || return
    UV_DEFAULT_INDEX=${UV_DEFAULT_INDEX:-$(setting index-url)}
    UV_INDEX=${UV_INDEX:-$(setting extra-index-url)}
    UV_FIND_LINKS=${UV_FIND_LINKS:-$(setting find-links | tr ' ' ,)}
    SSL_CERT_FILE=${SSL_CERT_FILE:-$(setting cert)}
    for name in UV_DEFAULT_INDEX UV_INDEX UV_FIND_LINKS SSL_CERT_FILE; do
        eval "value=\$$name"
        if [ -n "$value" ]; then export "${name?}"; else unset "$name"; fi
    done
    UV_INDEX_STRATEGY=unsafe-best-match "$python" -m uv pip install --quiet --python "$python" "$@"
}

install_with_uv "$@" || {
    echo "uv could not install; pip installs (one to five minutes) ..." >&2
    install_with_pip --upgrade 'pip>=25.1'
    install_with_pip --no-compile "$@"
}
