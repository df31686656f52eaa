"""Caps in the process that holds them."""

from __future__ import annotations

import contextlib
import os
import signal

import pytest

from tests.waiting import eventually
from workloads.caps import apply as caps
from workloads.caps import journal as caps_journal
from workloads.caps.gpu_set import Cap, CapsError
from workloads.caps.open_gpus import open_gpu_set

BEFORE_W = [700.0, 500.0]


def watts(value):
    return Cap("power_limit_watts", float(value))


def test_a_journal_that_goes_while_it_is_looked_at_stops_no_sweep(cards, tmp_path, monkeypatch):
    monkeypatch.setattr(caps_journal, "journal_paths", lambda folder: [folder / "1-2.json"])
    with contextlib.closing(open_gpu_set(None, str(cards.path))) as both, caps.restoring_caps(both, tmp_path) as setter:
        setter.apply(watts(300))
    assert [gpu.limit_w for gpu in cards.gpus] == BEFORE_W


def test_who_checks_writes_nothing_to_cards_that_another_may_hold(cards, tmp_path):
    path = str(cards.path)
    with contextlib.closing(open_gpu_set(None, path)) as held, contextlib.closing(open_gpu_set(None, path)) as wanted:
        wanted.set_power_limit = lambda uuid, set_w: pytest.fail(f"{uuid} was set to {set_w} W")
        with caps.restoring_caps(held, tmp_path) as setter:
            setter.apply(watts(300))
            caps.check_caps(wanted, [watts(400)])
            with pytest.raises(CapsError, match="holds caps already"), caps.restoring_caps(wanted, tmp_path):
                pass


def test_a_process_holds_caps_once(cards, tmp_path):
    path = str(cards.path)
    with (
        contextlib.closing(open_gpu_set(["0"], path)) as one,
        contextlib.closing(open_gpu_set(["1"], path)) as other,
        caps.restoring_caps(one, tmp_path),
        pytest.raises(CapsError, match="holds caps already"),
        caps.restoring_caps(other, tmp_path),
    ):
        pass


def test_no_cap_puts_back_what_stood_before_between_two(cards, tmp_path):
    with contextlib.closing(open_gpu_set(None, str(cards.path))) as both, caps.restoring_caps(both, tmp_path) as setter:
        setter.apply(watts(300))
        setter.apply(None)
        assert [gpu.limit_w for gpu in cards.gpus] == BEFORE_W
        setter.apply(watts(400))
        assert [gpu.limit_w for gpu in cards.gpus] == [400, 400]
    assert [gpu.limit_w for gpu in cards.gpus] == BEFORE_W


def test_a_folder_that_cannot_be_written_is_said_before_anything_is_set(cards, tmp_path):
    (tmp_path / "file").touch()
    with (
        contextlib.closing(open_gpu_set(None, str(cards.path))) as both,
        pytest.raises(CapsError, match="set XDG_STATE_HOME"),
        caps.restoring_caps(both, tmp_path / "file" / "caps"),
    ):
        pass


def test_without_its_guardian_a_sweep_sets_no_other_cap_and_still_puts_back_what_stood_before(cards, tmp_path):
    with contextlib.closing(open_gpu_set(None, str(cards.path))) as both, caps.restoring_caps(both, tmp_path) as setter:
        setter.apply(watts(300))
        os.kill(setter._guardian.pid, signal.SIGKILL)
        eventually(lambda: not setter._guardian.watches)
        with pytest.raises(CapsError, match="the guardian that takes the caps off again was ended"):
            setter.apply(watts(400))
    assert [gpu.limit_w for gpu in cards.gpus] == BEFORE_W
