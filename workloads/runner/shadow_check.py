"""Check for a user's `exporter.py` that hides Wattline's package `exporter`."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path


def shadowing_error() -> str | None:
    """Return the error message, or None. Nothing is imported, so that no code of the user runs."""
    spec = importlib.util.find_spec("exporter")
    if spec is None:
        return "cannot find Wattline's package exporter: the installation is incomplete; run pip install . in the clone"
    folders = [Path(folder) for folder in spec.submodule_search_locations or ()]
    if any((folder / "contract" / "run.py").exists() for folder in folders):
        return None
    hiding = folders[0] if folders else Path(spec.origin or "")
    return f"cannot import Wattline's package exporter: {hiding} hides it; rename it, or run from another folder"


def exit_if_shadowed() -> None:
    text = shadowing_error()
    if text is not None:
        print(text, file=sys.stderr)
        sys.exit(1)
