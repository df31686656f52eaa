from __future__ import annotations

from pathlib import Path

import pytest

from workloads.client import registration


@pytest.mark.parametrize(
    ("content", "found"),
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
def test_own_scope_cgroup_accepts_only_scope_of_slice(tmp_path: Path, content: str, found: str | None) -> None:
    path = tmp_path / "cgroup"
    path.write_text(content)
    assert registration.own_scope_cgroup(path) == found


def test_own_scope_cgroup_without_cgroup_file_is_none(tmp_path: Path) -> None:
    assert registration.own_scope_cgroup(tmp_path / "cgroup") is None
