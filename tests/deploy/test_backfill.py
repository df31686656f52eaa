"""Backfill of recording rules with the servers' tools, without counting energy twice."""

from __future__ import annotations

import subprocess
import urllib.request
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests import servers
from tests.analyzer.fleet_nodes import (
    NodeSeries,
    import_to_victoria_metrics,
    write_prometheus_blocks,
)

RULES = Path(__file__).parents[2] / "deploy" / "prometheus" / "wattline.rules.yml"
BEGIN_S = 1_789_034_400
HOUR_S = 3_600
END_S = BEGIN_S + 3 * HOUR_S
RECORDED = f"instance:wattline_device_energy_joules:increase5m[12h] @ {END_S}"
HOUR = f"instance:wattline_device_energy_joules:sum1h @ {END_S}"
SUM, NUMBER = f"sum(sum_over_time({RECORDED}))", f"max(count_over_time({RECORDED}))"


def node() -> NodeSeries:
    """Yield a node with a GPU of 300 W, scraped for four hours; rules saw all but the first."""
    t = np.arange(BEGIN_S - HOUR_S, END_S, 15.0)
    labels = {
        "__name__": "wattline_gpu_energy_joules_total",
        "instance": "a:9847",
        "job": "wattline",
    }
    return NodeSeries({**labels, "gpu": "0", "uuid": "GPU-1"}, t, 300.0 * (t - t[0]))


def run(*call: Any) -> None:
    completed = subprocess.run(
        [*map(str, call)], capture_output=True, text=True, timeout=120, check=False
    )
    assert completed.returncode == 0, completed.stderr


def test_promtool_backfill_has_the_rules_timestamps(tmp_path: Path) -> None:
    """Backfill twice: equal samples of one rule file are stored once."""
    keep = ["--storage.tsdb.retention.time=3000d"]
    write_prometheus_blocks(tmp_path, [node()])
    result: list[list[float]] = []
    for parts in ([(0, 1), (2, 3)], [(0.5, 2.5)], [(0, 3)], []):
        with servers.prometheus(tmp_path, [], flags=keep) as address:
            if not parts:
                result += [servers.query(address, what) for what in (SUM, NUMBER, HOUR)]
            for begin_h, end_h in parts:
                run(
                    *(
                        servers.require("promtool"),
                        "tsdb",
                        "create-blocks-from",
                        "rules",
                        f"--url={address}",
                    ),
                    *(
                        f"--start={BEGIN_S + begin_h * HOUR_S:.0f}",
                        f"--end={BEGIN_S + end_h * HOUR_S:.0f}",
                    ),
                    *(f"--output-dir={tmp_path / 'prometheus'}", RULES),
                )

    assert result == [[36 * 300 * 300], [36], [300 * 3_600]]


def test_vmalert_backfill_fills_a_gap_exactly(tmp_path: Path) -> None:
    """Backfill from the first to the last missing five minutes."""
    with servers.victoria_metrics(tmp_path, [], flags=["-retentionPeriod=3000d"]) as address:
        import_to_victoria_metrics(address, [node()])
        for begin_s, end_s in (
            (0, HOUR_S),
            (2 * HOUR_S, 3 * HOUR_S),
            (HOUR_S + 300, 2 * HOUR_S - 300),
        ):
            begin, end = (
                datetime.fromtimestamp(BEGIN_S + t, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
                for t in (begin_s, end_s)
            )
            run(
                *(servers.require("vmalert"), f"-rule={RULES}", f"-datasource.url={address}"),
                *(
                    f"-remoteWrite.url={address}",
                    f"-replay.timeFrom={begin}",
                    f"-replay.timeTo={end}",
                ),
                *("-replay.rulesDelay=1ms", "-replay.disableProgressBar"),
                f"-httpListenAddr=127.0.0.1:{servers.free_port()}",
            )
        urllib.request.urlopen(f"{address}/internal/force_flush").close()
        result = [servers.query(address, what)[0] for what in (SUM, NUMBER)]

    assert result == [pytest.approx(37 * 300 * 300), 37]
