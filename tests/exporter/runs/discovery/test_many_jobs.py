"""Many jobs at once, of real processes in real cgroups, and stops of the exporter."""

import pytest

from tests.exporter.runs.discovery.real_cgroups import cgroup2_mount
from tests.exporter.runs.discovery.real_jobs import soak

pytestmark = pytest.mark.skipif(
    cgroup2_mount() is None, reason="needs root and a writable cgroup v2"
)


def test_jobs_with_killed_exporters_are_found_once_with_their_energy(tmp_path):
    course, found = soak(tmp_path, 7, 30, mean_s=0.8, kill_s=6.0)
    assert found.violations == []
    assert course.kills > 0
    assert found.runs > 15


def test_100_jobs_within_one_second_are_100_runs(tmp_path):
    """The load begins and ends with its run, so that polls which are late on a busy machine place
    energy outside of it: up to 3 % of these short jobs. `violations` compares each run with its
    half-width.
    """
    _, found = soak(tmp_path, 8, 100, mean_s=0.01, kill_s=0.0)
    assert found.violations == []
    assert found.runs + found.unseen == 100
    assert found.joules == pytest.approx(found.true_joules, rel=0.05)
