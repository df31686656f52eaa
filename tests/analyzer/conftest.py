import subprocess
import sys
from pathlib import Path

import pytest

from tests.analyzer.node import START_S, Gpu, Run, every, scrape, scraped, write_history

ROOT = Path(__file__).parents[2]


@pytest.fixture
def steady_history(tmp_path):
    """Two GPUs at 60 W idle and 300 W during a run of 20 s, scraped each second: 300 W x 20 s = 6,000 J each."""
    gpus = [Gpu([(START_S - 1_000, 60), (START_S, 300), (START_S + 20, 60)], index=str(index)) for index in range(2)]
    run = Run()
    times = every(1, START_S - 60.5, START_S + 60)
    return write_history(tmp_path, scraped((t, scrape(gpus, run, t)) for t in times))


@pytest.fixture
def analyzer():
    """The command line, in a process of its own."""

    def call(*arguments, **environment):
        return subprocess.run(
            [sys.executable, "-W", "error", "-c", "from analyzer.cli import main; main()", *map(str, arguments)],
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
            env={"PATH": "/usr/bin:/bin", "HOME": "/nonexistent", "PYTHONPATH": str(ROOT), **environment},
        )

    return call
