"""Caps set in this process."""

from __future__ import annotations

import contextlib
import os
import signal

import pytest

from tests.polling import eventually
from wattline_workloads.caps import apply as caps
from wattline_workloads.caps import journal as caps_journal
from wattline_workloads.caps.gpu_set import Cap, CapsError, open_gpu_set

BEFORE_W = [700.0, 500.0]


def watts(value):
    return Cap("power_limit_watts", float(value))


def test_caps_vanishing_journal_is_ignored(limited_gpus, tmp_path, monkeypatch):
    monkeypatch.setattr(caps_journal, "journal_paths", lambda folder: [folder / "1-2.json"])
    with (
        contextlib.closing(open_gpu_set(None, str(limited_gpus.path))) as gpu_set,
        caps.restoring_caps(gpu_set, tmp_path) as setter,
    ):
        setter.apply(watts(300))
    assert [gpu.limit_w for gpu in limited_gpus.gpus] == BEFORE_W


def test_check_caps_changes_nothing(limited_gpus, tmp_path):
    path = str(limited_gpus.path)
    with (
        contextlib.closing(open_gpu_set(None, path)) as held_set,
        contextlib.closing(open_gpu_set(None, path)) as other_set,
    ):
        other_set.set_power_limit = lambda uuid, watts: pytest.fail(f"{uuid} was set to {watts} W")
        with caps.restoring_caps(held_set, tmp_path) as setter:
            setter.apply(watts(300))
            caps.check_caps(other_set, [watts(400)])
            with (
                pytest.raises(CapsError, match="already holds caps"),
                caps.restoring_caps(other_set, tmp_path),
            ):
                pass


def test_restoring_caps_nested_fails(limited_gpus, tmp_path):
    path = str(limited_gpus.path)
    with (
        contextlib.closing(open_gpu_set(["0"], path)) as first,
        contextlib.closing(open_gpu_set(["1"], path)) as second,
        caps.restoring_caps(first, tmp_path),
        pytest.raises(CapsError, match="already holds caps"),
        caps.restoring_caps(second, tmp_path),
    ):
        pass


def test_caps_apply_none_restores_initial_limits(limited_gpus, tmp_path):
    with (
        contextlib.closing(open_gpu_set(None, str(limited_gpus.path))) as gpu_set,
        caps.restoring_caps(gpu_set, tmp_path) as setter,
    ):
        setter.apply(watts(300))
        setter.apply(None)
        assert [gpu.limit_w for gpu in limited_gpus.gpus] == BEFORE_W
        setter.apply(watts(400))
        assert [gpu.limit_w for gpu in limited_gpus.gpus] == [400, 400]
    assert [gpu.limit_w for gpu in limited_gpus.gpus] == BEFORE_W


def test_caps_unwritable_folder_fails_before_change(limited_gpus, tmp_path):
    (tmp_path / "file").touch()
    with (
        contextlib.closing(open_gpu_set(None, str(limited_gpus.path))) as gpu_set,
        pytest.raises(CapsError, match="set XDG_STATE_HOME"),
        caps.restoring_caps(gpu_set, tmp_path / "file" / "caps"),
    ):
        pass


def test_caps_without_watchdog_set_no_cap_and_restore(limited_gpus, tmp_path):
    with (
        contextlib.closing(open_gpu_set(None, str(limited_gpus.path))) as gpu_set,
        caps.restoring_caps(gpu_set, tmp_path) as setter,
    ):
        setter.apply(watts(300))
        os.kill(setter._watchdog.pid, signal.SIGKILL)
        eventually(lambda: not setter._watchdog.is_running)
        with pytest.raises(
            CapsError, match="the watchdog process that restores the limits has ended"
        ):
            setter.apply(watts(400))
    assert [gpu.limit_w for gpu in limited_gpus.gpus] == BEFORE_W
