from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from deploy.packages.commands import ROOT

needs_build = pytest.mark.skipif(
    "WATTLINE_RELEASE_TEST" not in os.environ, reason="two builds take minutes: make release-test"
)


@pytest.fixture(scope="package")
def built(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Return the folders of two builds."""
    folders = [tmp_path_factory.mktemp("dist"), tmp_path_factory.mktemp("dist")]
    for folder in folders:
        command = ["make", "release", "SNAPSHOT=1", f"OUT={folder}", f"PYTHON={sys.executable}"]
        done = subprocess.run(
            command, cwd=ROOT, check=False, capture_output=True, text=True, timeout=1_500
        )
        assert done.returncode == 0, done.stderr
    return folders
