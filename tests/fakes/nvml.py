"""Loadable libnvidia-ml.so.1 with simulated GPUs, for pynvml in a separate process and for other
tools.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from pathlib import Path

from wattline_exporter.simulation import ENVIRONMENT

SOURCES = Path(__file__).with_name("nvml")
_BUILDS = Path(__file__).parents[2] / "build" / "fakes"
_FLAGS = (
    *("-O2", "-Wall", "-Wextra", "-Werror", "-std=c11", "-shared", "-fPIC", "-fvisibility=hidden"),
    "-ffp-contract=off",  # a fused multiply-add rounds once where Python rounds twice
)


def library() -> Path:
    """Return the library, built once for each content of its sources."""
    sources = sorted(SOURCES.glob("*.[ch]"))
    digest = hashlib.sha256(
        b"\0".join([" ".join(_FLAGS).encode(), *(path.read_bytes() for path in sources)])
    )
    built = _BUILDS / digest.hexdigest()[:16] / "libnvidia-ml.so.1"
    if not built.exists():
        compiler = shutil.which("cc")
        if compiler is None:
            raise RuntimeError(
                "the fake libnvidia-ml.so.1 is built from C; install a C compiler: apt install gcc"
            )
        built.parent.mkdir(parents=True, exist_ok=True)
        unfinished = built.with_suffix(
            f".{os.getpid()}"
        )  # renamed when complete: other test processes may build it, too
        inputs = [path for path in sources if path.suffix == ".c"]
        subprocess.run(
            [compiler, *_FLAGS, "-o", unfinished, *inputs, "-lm", "-lpthread"], check=True
        )
        unfinished.replace(built)
    return built


def environment(state_file: Path) -> dict[str, str]:
    """Return the environment with which a process uses the simulated GPUs of this state file."""
    others = os.environ.get("LD_LIBRARY_PATH")
    folders = [str(library().parent), *([others] if others else [])]
    return {"LD_LIBRARY_PATH": ":".join(folders), ENVIRONMENT: str(state_file)}
