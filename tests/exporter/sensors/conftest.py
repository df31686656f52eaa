from __future__ import annotations

import tempfile
from pathlib import Path

import pytest


@pytest.fixture
def open_folder():
    """Return a folder readable by everyone, unlike tmp_path."""
    with tempfile.TemporaryDirectory(prefix="sysfs-") as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)
