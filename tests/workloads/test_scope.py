from __future__ import annotations

from pathlib import Path

import pytest

from workloads.client import registration


@pytest.mark.parametrize(
    ("told", "found"),
    [
        ("0::/wattline.slice/run-r1.scope\n", "/wattline.slice/run-r1.scope"),
        (
            "12:cpu:/x\n0::/user.slice/user-1.slice/user@1.service/wattline.slice/run-u7.scope\n",
            "/user.slice/user-1.slice/user@1.service/wattline.slice/run-u7.scope",
        ),
        ("0::/wattline.slice\n", None),  # others may be there as well
        ("0::/user.slice/user-1.slice/session-1.scope\n", None),
        ("1:cpu:/wattline.slice/run-r1.scope\n", None),  # the first version's
        ("", None),
    ],
)
def test_only_a_scope_of_the_slice_is_a_job_s_own_group(tmp_path: Path, told: str, found: str | None) -> None:
    path = tmp_path / "cgroup"
    path.write_text(told)
    assert registration.own(path) == found


def test_where_there_are_no_groups_there_is_none(tmp_path: Path) -> None:
    assert registration.own(tmp_path / "cgroup") is None
