"""Commands of a build, run in the root of the repository."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def run(*command: str | Path) -> str:
    """Return the output of a command. Raise SystemExit with its message if it fails."""
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(
            f"cannot build: {' '.join(map(str, command[:4]))} failed: "
            f"{(done.stderr or done.stdout)[-2_000:]}"
        )
    return done.stdout
