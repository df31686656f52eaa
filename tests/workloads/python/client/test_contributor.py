from __future__ import annotations

from pathlib import Path

import pytest

from wattline.client import contributor


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
def test_own_scope_cgroup_accepts_only_scope_of_slice(tmp_path: Path, content: str, cgroup: str | None) -> None:
    path = tmp_path / "cgroup"
    path.write_text(content)
    assert contributor.own_scope_cgroup(path) == cgroup


def test_own_scope_cgroup_without_cgroup_file_is_none(tmp_path: Path) -> None:
    assert contributor.own_scope_cgroup(tmp_path / "cgroup") is None
