"""Carbon providers in `exporter check`."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from tests.exporter.commands import exporter
from tests.fakes import electricity_maps, watttime, web_api
from tests.fakes.electricity_maps import ElectricityMapsApi

BOTH = f"# the node's\nelectricitymaps={electricity_maps.TOKEN}\n\nwatttime={watttime.USER}:{watttime.PASSWORD}\n"


@pytest.fixture(autouse=True)
def _unset_token(monkeypatch):
    monkeypatch.delenv("WATTLINE_CARBON_TOKEN", raising=False)


def test_check_prints_one_line_per_carbon_basis(tmp_path):
    now = datetime.now(UTC)
    (tmp_path / "token").write_text(BOTH)
    with web_api.serve_in_thread(ElectricityMapsApi(now, free=True)) as em:
        options = (
            "--carbon.provider",
            "electricitymaps",
            "--carbon.region",
            "DE",
            "--carbon.url",
            em.url,
        )
        marginal = (
            "--carbon.marginal-provider",
            "watttime",
            "--carbon.marginal-region",
            "CAISO_NORTH",
        )
        nowhere = (
            "--carbon.marginal-url",
            "http://127.0.0.1:1",
            "--carbon.token-file",
            str(tmp_path / "token"),
        )
        state = ("--state.path", str(tmp_path / "state"), "--path.sysfs", str(tmp_path))
        done = exporter(
            "check",
            "--idle-seconds",
            "0",
            "--simulate",
            "1xH200",
            *state,
            *options,
            *marginal,
            *nowhere,
        )
    lines = [line for line in done.stdout.splitlines() if line.startswith("carbon")]
    assert lines[0] == "carbon  works: DE, 320 gCO2eq/kWh (estimated, electricitymaps, average)"
    assert lines[1].startswith("carbon  fails: cannot fetch http://127.0.0.1:1/login")
    assert lines[1].endswith(
        "until then the intensity is not available; emissions are not exported"
    )
    assert done.stderr == ""  # not repeated on stderr
    assert "s3cret" not in done.stdout + done.stderr
    assert not (tmp_path / "state").exists()  # check creates no files
