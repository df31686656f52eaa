import contextlib
import os
import sys
import time
from pathlib import Path

import pytest

from tests.analyzer import small_fleet
from tests.analyzer.node import (
    START_S,
    NodeGpu,
    NodeRun,
    scrape,
    scrape_times,
    series_of_scrapes,
    write_history,
)
from tests.fork_server import ForkServer
from wattline_analyzer.cli import main

ROOT = Path(__file__).parents[2]
_NURSERY = ForkServer(
    *(
        "wattline_analyzer.cli",
        "wattline_analyzer.report.plot",
        "jinja2",
        "matplotlib.backends.backend_agg",
        "requests",
    ),
    *("rich.table", "scipy.stats"),
    flags=("-W", "error"),
)


@contextlib.contextmanager
def _local_zone(name):
    before = os.environ.get("TZ")
    os.environ["TZ"] = name
    time.tzset()
    try:
        yield
    finally:
        os.environ.pop("TZ")
        os.environ |= {} if before is None else {"TZ": before}
        time.tzset()


@pytest.fixture(scope="session")
def local_zone_during():
    """Return a context manager with another local time zone, for many examples of one test."""
    return _local_zone


@pytest.fixture
def local_zone():
    """Return a function that sets the local time zone until the end of the test."""
    with contextlib.ExitStack() as stack:
        yield lambda name: stack.enter_context(_local_zone(name))


@pytest.fixture
def steady_history(tmp_path):
    """Two GPUs at 60 W idle and 300 W during a run of 20 s, scraped each second: 300 W x 20 s =
    6,000 J each.
    """
    gpus = [
        NodeGpu([(START_S - 1_000, 60), (START_S, 300), (START_S + 20, 60)], index=str(index))
        for index in range(2)
    ]
    run = NodeRun()
    times = scrape_times(1, START_S - 60.5, START_S + 60)
    return write_history(tmp_path, series_of_scrapes((t, scrape(gpus, run, t)) for t in times))


@pytest.fixture(scope="session")
def analyzer():
    """Run the command line in a separate process."""

    def call(*arguments, **environment):
        return _NURSERY.run(
            ["-c", "from wattline_analyzer.cli import main; main()", *map(str, arguments)],
            {"PATH": "/usr/bin:/bin", "HOME": "/nonexistent", **environment},
            timeout_s=120,
        )

    return call


@pytest.fixture(scope="session")
def fleet_addresses(tmp_path_factory):
    """Addresses of a Prometheus and a VictoriaMetrics that hold the same small fleet."""
    with small_fleet.fleet_servers(tmp_path_factory.mktemp("fleet")) as addresses:
        yield addresses


@pytest.fixture(scope="session")
def fleet_history(tmp_path_factory):
    """A history file with the same small fleet."""
    return small_fleet.fleet_history(tmp_path_factory.mktemp("fleet-history"))


@pytest.fixture
def call(capsys, monkeypatch):
    """Run the command line; return exit code, stdout and stderr."""

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["analyzer", *map(str, arguments)])
        with pytest.raises(SystemExit) as exit_info:
            main()
        return exit_info.value.code, *capsys.readouterr()

    return run
