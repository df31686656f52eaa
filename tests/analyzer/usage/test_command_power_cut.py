"""`analyzer usage` on a node whose saved counters lack the last seconds before a power cut."""

import json
from contextlib import ExitStack

import numpy as np
import pytest

from tests import servers
from tests.analyzer.fleet_nodes import (
    NodeSeries,
    import_to_victoria_metrics,
    write_prometheus_blocks,
)
from tests.analyzer.small_fleet import write_samples
from wattline.contract import metrics as m

BEGIN_S = 1_790_000_000.0
CUT_S, LOST_S, BACK_S, END_S = 3_600.0, 20.0, 3_900.0, 7_200.0
OLD_J = 1e9
WATTS = {"ann": 200.0, "": 100.0}
TRUE_S = CUT_S - LOST_S + END_S - BACK_S


def power_cut_series() -> list[NodeSeries]:
    """Return the counters of a node with one GPU: they fall by 20 s of energy, and not to 0."""
    t = np.arange(-600.0, END_S + 1, 15.0)
    t = t[(t <= CUT_S) | (t >= BACK_S)]
    counted_s = np.where(t <= CUT_S, t, t - BACK_S + CUT_S - LOST_S)
    node = {"instance": "a:9847", "job": "wattline"}

    def one(metric, labels, value) -> NodeSeries:
        return NodeSeries(
            {"__name__": metric.name, **node, **labels},
            BEGIN_S + t,
            np.broadcast_to(value, t.shape),
        )

    gpu = {"gpu": "0", "uuid": "GPU-a"}
    found = [
        one(m.GPU_INFO, {**gpu, "name": "NVIDIA H200"}, 1.0),
        one(m.GPU_ENERGY, gpu, 2 * OLD_J + sum(WATTS.values()) * counted_s),
    ]
    for user, watts in WATTS.items():
        owner = {"kind": "slurm" if user else "none", "owner": user, "account": "", "workload": ""}
        labels = {**owner, "component": "gpu", "policy": "idle_shared"}
        found.append(one(m.OWNER_ENERGY, labels, OLD_J + watts * counted_s))
    return found


@pytest.fixture(scope="module")
def sources(tmp_path_factory):
    folder, series = tmp_path_factory.mktemp("power-cut"), power_cut_series()
    keep = ["--storage.tsdb.retention.time=3000d"]
    for name in ("prometheus", "victoria-metrics"):
        (folder / name).mkdir()
    write_prometheus_blocks(folder / "prometheus", series)
    with ExitStack() as stack:
        prometheus = stack.enter_context(servers.prometheus(folder / "prometheus", [], flags=keep))
        victoria = stack.enter_context(
            servers.victoria_metrics(
                folder / "victoria-metrics", [], flags=["-retentionPeriod=3000d"]
            )
        )
        import_to_victoria_metrics(victoria, series)
        yield {
            "prometheus": prometheus,
            "victoria-metrics": victoria,
            "history": str(write_samples(folder, series)),
        }


@pytest.mark.parametrize("source", ["prometheus", "victoria-metrics", "history"])
def test_usage_counts_no_total_again_after_a_power_cut(call, sources, source):
    window = ("--since", f"{BEGIN_S:.0f}", "--until", f"{BEGIN_S + END_S:.0f}")
    code, out, err = call(
        "usage", "--source", sources[source], "--by", "user", *window, "--format", "json"
    )

    assert code == 0, err
    document = json.loads(out)
    (ann,) = document["groups"]
    assert ann["energy_joules"] == pytest.approx(WATTS["ann"] * TRUE_S, rel=0.01)
    assert document["unattributed"][0]["energy_joules"] == pytest.approx(
        WATTS[""] * TRUE_S, rel=0.01
    )
    assert document["total"]["energy_joules"] == pytest.approx(300.0 * TRUE_S, rel=0.01)
