from __future__ import annotations

import tempfile
from pathlib import Path

import pytest


@pytest.fixture
def open_folder():
    """A folder into which everybody may look; pytest's own is closed to others."""
    with tempfile.TemporaryDirectory(prefix="sysfs-") as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)
