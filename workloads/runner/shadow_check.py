"""A user's own `exporter.py` beside their script hides Wattline's package of that name; this says so."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path


def complaint() -> str | None:
    """Which file hides what and what to do, or None; nothing is imported, so nothing of the user's is run."""
    spec = importlib.util.find_spec("exporter")
    if spec is None:
        return "Wattline's package exporter is missing beside workloads; in the clone of Wattline, type: pip install ."
    folders = [Path(folder) for folder in spec.submodule_search_locations or ()]
    if any((folder / "contract" / "run.py").exists() for folder in folders):
        return None
    hiding = folders[0] if folders else Path(spec.origin or "")
    return f"{hiding} hides Wattline's own package exporter: rename it, or run this from another folder"


def exit_if_shadowed() -> None:
    text = complaint()
    if text is not None:
        print(text, file=sys.stderr)
        sys.exit(1)
