"""Lookup of runs by their ids."""

from types import SimpleNamespace

import pytest

from wattline_exporter.runs.lookup import RunLookup
from wattline_exporter.sensors.readings import RunError

NO_ARCHIVE = SimpleNamespace(run=lambda _: None)


def test_unknown_run_is_answered_with_the_latest_runs_newest_first():
    """After a restart, runs are in another order than they began."""
    runs = {f"run-{k}": SimpleNamespace(started_at=float(k)) for k in (3, 1, 7, 2, 9, 4)}

    with pytest.raises(
        RunError, match="latest runs are: run-9, run-7, run-4, run-3, run-2; see GET"
    ):
        RunLookup(runs, NO_ARCHIVE).find("other")


def test_unknown_run_without_other_runs_is_answered_with_none():
    with pytest.raises(RunError, match="latest runs are: none; see GET"):
        RunLookup({}, NO_ARCHIVE).find("other")
