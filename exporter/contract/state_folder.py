"""Default folder of state and history, by the XDG Base Directory Specification."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path


def user_state_folder(environ: Mapping[str, str]) -> Path:
    """Return `wattline` in the user's state folder; a relative XDG_STATE_HOME is ignored, as the specification demands.

    The environment is an argument, unlike in platformdirs, since a runner looks it up for the exporter that it starts.
    """
    base = environ.get("XDG_STATE_HOME", "")
    if base.startswith("/"):
        return Path(base) / "wattline"
    home = environ.get("HOME")
    return (Path(home) if home else Path.home()) / ".local" / "state" / "wattline"
