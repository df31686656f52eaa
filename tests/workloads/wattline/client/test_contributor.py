from __future__ import annotations

from pathlib import Path

import pytest

from tests.polling import eventually
from wattline.client import contributor
from wattline.client.api import JobApi, UnreachableError


@pytest.mark.parametrize(
    ("content", "cgroup"),
    [
        ("0::/wattline.slice/run-r1.scope\n", "/wattline.slice/run-r1.scope"),
        (
            "12:cpu:/x\n0::/user.slice/user-1.slice/user@1.service/wattline.slice/run-u7.scope\n",
            "/user.slice/user-1.slice/user@1.service/wattline.slice/run-u7.scope",
        ),
        ("0::/wattline.slice\n", None),  # other processes may be in it
        ("0::/user.slice/user-1.slice/session-1.scope\n", None),
        ("1:cpu:/wattline.slice/run-r1.scope\n", None),  # cgroup v1
        ("", None),
    ],
)
def test_own_scope_cgroup_accepts_only_scope_of_slice(
    tmp_path: Path, content: str, cgroup: str | None
) -> None:
    path = tmp_path / "cgroup"
    path.write_text(content)
    assert contributor.own_scope_cgroup(path) == cgroup


def test_own_scope_cgroup_without_cgroup_file_is_none(tmp_path: Path) -> None:
    assert contributor.own_scope_cgroup(tmp_path / "cgroup") is None


@pytest.fixture
def job_api(exporter):
    api = JobApi(exporter.address, 0.1)
    api.post("/runs", {"workload": "train", "run_id": "r"})
    return api


def test_job_api_hanging_exporter_is_not_asked_again(exporter, job_api):
    exporter.api.responds.clear()
    for _ in range(3):
        with pytest.raises(UnreachableError, match="timed out"):
            job_api.get("/runs/r")
    assert job_api.hangs

    exporter.api.responds.set()
    assert job_api.persistent(5.0).get("/runs/r")["run_id"] == "r"
    assert job_api.get("/runs/r")["run_id"] == "r"
    eventually(lambda: sum(one.method == "GET" for one in exporter.api.requests) == 3, within_s=5)


def test_phase_that_a_hanging_exporter_missed_is_posted_later(exporter, job_api, capfd):
    reporter = contributor.Contributor(job_api, "r", "me")
    exporter.api.responds.clear()
    for name in ("a", "b", "c"):
        reporter.change_phase(name)
    assert reporter.late_phases == 3
    assert capfd.readouterr().err.count("the phases of this run are incomplete") == 1

    exporter.api.responds.set()
    eventually(
        lambda: {"name": "c"} in exporter.api.bodies("/phase")
    )  # "a", given up, may be executed after it
    reporter.close()
