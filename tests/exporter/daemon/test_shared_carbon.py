"""Exporters that take the carbon intensities of another one: one request to the provider for
all.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.daemon import daemon
from tests.exporter.daemon.test_carbon import FORECAST, INTENSITY, OPTIONS, gb
from tests.fakes import web_api
from tests.fakes.carbon_api import CarbonApi
from tests.polling import eventually

GB = ("--carbon.provider", "gb")
SLOT_S = 1_800


def folder(parent: Path, name: str) -> Path:
    (parent / name).mkdir()
    return parent / name


@pytest.fixture
def api():
    with web_api.serve_in_thread(CarbonApi(datetime.now(UTC))) as served:
        yield served


@pytest.fixture
def leader(api, tmp_path):
    with daemon(folder(tmp_path, "leader"), *OPTIONS, *gb(api.url)) as exporter:
        exporter.wait_for_metric(bool, INTENSITY, provider="gb", quality="forecast")
        yield exporter


@pytest.mark.parametrize("source", ["address", "file"])
def test_followers_have_the_slots_of_the_leader_without_a_request(api, leader, tmp_path, source):
    shared = leader.url if source == "address" else tmp_path / "leader" / "state" / "carbon.json"
    eventually(
        (tmp_path / "leader" / "state" / "carbon.json").exists, "the leader has stored its slots"
    )
    asked = list(api.requested_paths)
    slot_left_s = SLOT_S - time.time() % SLOT_S
    for name in ("a", "b"):
        with daemon(
            folder(tmp_path, name), *OPTIONS, *GB, "--carbon.shared", str(shared)
        ) as follower:
            assert (
                follower.wait_for_metric(bool, INTENSITY, provider="gb", quality="forecast") == 200
            )
            assert (
                follower.value(FORECAST, provider="gb", basis="average", horizon_hours="47") == 200
            )
            assert follower.wait_for_metric(bool, "wattline_source_up", source="carbon") == 1
    assert slot_left_s < 60 or api.requested_paths == asked  # unless the leader's slot has ended


def test_follower_of_another_region_is_told_so(leader, tmp_path):
    options = (*GB, "--carbon.region", "OX1", "--carbon.shared", leader.url)
    with daemon(folder(tmp_path, "a"), *OPTIONS, *options) as follower:
        message = f"{leader.url} has intensities of gb for GB, not of gb for OX1"
        eventually(lambda: message in follower.log(), "the message is in the log", follower.log)
        assert follower.value(INTENSITY, provider="gb", quality="forecast") is None


@pytest.mark.parametrize(
    ("text", "message"),
    [(None, "No such file or directory"), ("{", "cannot parse the response of")],
)
def test_unreadable_file_is_named_and_the_yearly_mean_used(tmp_path, text, message):
    path = tmp_path / "shared.json"
    if text is not None:
        path.write_text(text)
    with daemon(folder(tmp_path, "a"), *OPTIONS, *GB, "--carbon.shared", str(path)) as follower:
        assert (
            follower.wait_for_metric(
                bool, INTENSITY, provider="static", quality="static", region="GBR"
            )
            == 268.255
        )
        assert message in follower.log()
        assert "Traceback" not in follower.log()
