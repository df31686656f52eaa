"""Real Prometheus and VictoriaMetrics with the synthetic series and the results of the recording
rules.
"""

from __future__ import annotations

import contextlib
import subprocess
import urllib.request
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

from tests import servers
from tests.analyzer.fleet_nodes import (
    NodeSeries,
    import_to_victoria_metrics,
    write_prometheus_blocks,
)
from tests.grafana import fault_series, week_series
from tests.grafana.cluster import BEGIN_S, END_S, series

RULES = Path(__file__).parents[2] / "deploy" / "prometheus" / "wattline.rules.yml"
_FIRST_RULE_S = BEGIN_S + 300


def _spans() -> Iterator[list[NodeSeries]]:
    """Yield spans separately, because promtool reads all its input once per two hours of the whole
    range.
    """
    yield series()
    yield list(fault_series.series())
    yield list(week_series.week())
    yield list(week_series.day())


@contextlib.contextmanager
def prometheus(folder: Path) -> Iterator[str]:
    keep = ["--storage.tsdb.retention.time=3000d"]
    for span in _spans():
        write_prometheus_blocks(folder, span)
    with servers.prometheus(folder, [], flags=keep) as address:
        servers.backfill_rules(address, RULES, BEGIN_S, END_S, folder / "prometheus")
    with servers.prometheus(folder, [], flags=keep) as address:
        yield address


@contextlib.contextmanager
def victoria_metrics(folder: Path) -> Iterator[str]:
    with servers.victoria_metrics(folder, [], flags=["-retentionPeriod=3000d"]) as address:
        for span in _spans():
            import_to_victoria_metrics(address, span)
        begin, end = (
            datetime.fromtimestamp(t, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
            for t in (_FIRST_RULE_S, END_S)
        )
        call = [servers.require("vmalert"), f"-rule={RULES}", f"-datasource.url={address}"]
        call += [
            f"-remoteWrite.url={address}",
            f"-replay.timeFrom={begin}",
            f"-replay.timeTo={end}",
        ]
        call += ["-replay.rulesDelay=1ms", "-replay.disableProgressBar"]
        call += [f"-httpListenAddr=127.0.0.1:{servers.free_port()}"]
        subprocess.run(call, check=True, capture_output=True, timeout=120)
        urllib.request.urlopen(f"{address}/internal/force_flush").close()
        yield address
