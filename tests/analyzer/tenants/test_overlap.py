"""Overlaps of tenants: common GPUs, work between reports, and energy between scrapes."""

import json
import math
from types import SimpleNamespace

import pytest

from tests.analyzer.node import START_S, NodeGpu, scrape_times, series_of_scrapes, write_history
from wattline.contract import metrics as m
from wattline_analyzer.tenants.overlap import TenantRun, concurrent_runs

GPU = NodeGpu([(START_S - 500, 60), (START_S, 400)])


def test_concurrent_runs_need_a_common_gpu():
    def tenant(run_id, start_s, *uuids):
        gpus = tuple(SimpleNamespace(instance="node", device=uuid) for uuid in uuids)
        facts = {
            "run_id": run_id,
            "started_at_s": start_s,
            "ended_at_s": start_s + 20,
            "instances": ("node",),
        }
        return TenantRun(None, SimpleNamespace(**facts, gpus=gpus), None)

    runs = [
        tenant("a", 0, "GPU-0"),
        tenant("b", 1, "GPU-1"),
        tenant("c", 2, "GPU-0", "GPU-2"),
        tenant("d", 3, "GPU-2"),
    ]

    steps = [[run.report.run_id for run in step] for step in concurrent_runs(runs)]
    assert steps == [["a", "c", "d"], ["b"]]


PHASES_LATE_S = 6.0
"""Age of the phases of a running run at a scrape, as the exporter has it."""


def tenant_series(run, t, *, dated, phase_half_j=4.0):
    """Series of a tenant that does `rates` of work per second, reports it every 2 s, and gets
    `shares` of the 400 W.

    Rates and shares are those before and after `change_s`; `dated` adds the time of the latest
    report.
    """
    run_id, labels, begin_s, end_s, change_s, rates, shares = run
    if not begin_s <= t <= end_s + 60:
        return
    until_s = min(t, end_s)
    reported_s = until_s if t >= end_s else begin_s + 2 * math.floor((t - begin_s) / 2)

    def total(at_s, per_second):
        first_s = min(max(change_s - begin_s, 0), at_s - begin_s)
        return per_second[0] * first_s + per_second[1] * (at_s - begin_s - first_s)

    own, device = {"run_id": run_id}, {"component": "gpu", "device": GPU.uuid}
    measure = {**own, "phase": "measure"}
    yield (
        m.RUN_INFO,
        {**own, "workload": "job", **{f"label_{k}": v for k, v in labels.items()}},
        1.0,
    )
    yield m.RUN_START, own, begin_s
    yield m.RUN_DURATION, own, until_s - begin_s
    if t >= end_s:
        yield m.RUN_END, own, end_s
        yield m.RUN_OUTCOME, {**own, "outcome": "ok"}, 1.0
    yield m.RUN_GPU_INFO, {**own, "gpu": "0", "uuid": GPU.uuid}, 1.0
    yield m.RUN_POWER_MAX, {**own, "gpu": "0", "uuid": GPU.uuid}, 400.0
    yield m.RUN_ENERGY, {**own, **device}, 400 * (until_s - begin_s)
    yield m.RUN_ENERGY_UNCERTAINTY, {**own, **device}, 4.0
    yield (
        m.RUN_ATTRIBUTED_ENERGY,
        {**own, **device, "policy": "idle_shared"},
        400 * total(until_s, shares),
    )
    yield m.RUN_WORK, {**own, "unit": "steps"}, total(reported_s, rates)
    if dated:
        yield m.RUN_WORK_TIMESTAMP, own, reported_s
    settled_s = end_s if t >= end_s else t - PHASES_LATE_S
    if settled_s > begin_s:
        yield m.RUN_PHASE_START, measure, begin_s
        yield m.RUN_PHASE_SECONDS, measure, settled_s - begin_s
        yield m.RUN_PHASE_ENERGY, {**measure, "component": "gpu"}, 400 * (settled_s - begin_s)
        if t >= end_s and phase_half_j is not None:
            yield m.RUN_PHASE_ENERGY_UNCERTAINTY, {**measure, "component": "gpu"}, phase_half_j
        yield m.RUN_PHASE_WORK, {**measure, "unit": "steps"}, total(reported_s, rates)


def mix_figures(analyzer, folder, runs, interval_s, *, dated, addresses=("",)):
    """Return the figures of the one mix of the experiment `part`, on one node that is scraped at
    these addresses.
    """
    scrapes = []
    for t in scrape_times(interval_s, START_S - 60.5, START_S + 350):
        values = [
            (m.BUILD_INFO, {"version": "1"}, 1.0),
            (m.GPU_POWER, {"gpu": "0", "uuid": GPU.uuid}, GPU.power_w(t)),
        ]
        for run in runs:
            values += tenant_series(run, t, dated=dated)
        scrapes.append((t, values))
    history = write_history(
        folder, [one for address in addresses for one in series_of_scrapes(scrapes, address)]
    )
    command = (
        "tenants",
        "--experiment",
        "part",
        "--source",
        history,
        "--since",
        "36500d",
        "--format",
        "json",
    )
    completed = analyzer(*command)
    assert completed.returncode == 0, completed.stderr
    (mix,) = json.loads(completed.stdout)["mixes"]
    figures: dict = mix["figures"]
    return figures


def two_halves(late_s):
    """Return runs of 20 steps/s each alone, and together of 10 each at the same power. The second
    one starts later.
    """
    runs = []
    for number, name in enumerate(("small", "large")):
        begin_s = START_S + 50 * number
        labels = {"experiment": "part", "tenant": name, "case": name}
        runs.append((f"alone-{name}", labels, begin_s, begin_s + 25, begin_s, (20, 20), (1, 1)))
        begin_s = START_S + 100.4 + late_s * number
        labels = {"experiment": "part", "tenant": name, "case": "both"}
        runs.append((f"both-{name}", labels, begin_s, begin_s + 25, begin_s, (10, 10), (0.5, 0.5)))
    return runs


@pytest.mark.parametrize("late_s", [0.01, 3.3])
@pytest.mark.parametrize("interval_s", [1, 5, 15])
def test_tenants_equal_halves_of_a_gpu_save_nothing(analyzer, tmp_path, interval_s, late_s):
    figures = mix_figures(analyzer, tmp_path, two_halves(late_s), interval_s, dated=True)

    for name, truth in {"stp": 1.0, "antt": 2.0, "energy_over_sequential_ratio": 1.0}.items():
        assert figures[name]["value"] == pytest.approx(truth, rel=0.005), name
        if late_s > 1:  # else the overlap is the whole phase, whose work is exact
            assert figures[name]["value_low"] <= truth <= figures[name]["value_high"], name


def test_tenants_on_node_with_two_addresses_count_once(analyzer, tmp_path):
    """400 W for the 25 s less 3.3 s of the overlap: 8,680 J. 20 steps/s in total."""
    addresses = ("10.0.0.1:9847", "gpu-a:9847")

    figures = mix_figures(analyzer, tmp_path, two_halves(3.3), 1, dated=True, addresses=addresses)

    assert figures["energy_joules"]["value"] == pytest.approx(8_680, rel=0.005)
    assert figures["total_per_second"]["value"] == pytest.approx(20, rel=0.005)


@pytest.mark.parametrize(("dated", "with_solo"), [(True, True), (False, True), (True, False)])
@pytest.mark.parametrize("interval_s", [1, 5, 15])
def test_tenants_partial_overlap_intervals_cover_the_truth(
    analyzer, tmp_path, interval_s, dated, with_solo
):
    """Alone 10 and 20 steps/s; together 5 and 10. `small` runs for 16 s, `large` starts 5 to 7 s
    later for 14 s.
    """
    runs = []
    for number, (name, rate) in enumerate((("small", 10), ("large", 20))):
        begin_s = START_S + 50 * number
        labels = {"experiment": "part", "tenant": name, "case": name}
        if with_solo:
            runs.append(
                (f"alone-{name}", labels, begin_s, begin_s + 10, begin_s, (rate, rate), (1, 1))
            )
    offsets_s = (5.2, 6.3, 6.9)
    for repeat, offset_s in enumerate(offsets_s):
        begin_s = START_S + 100 + 57 * repeat
        labels = {"experiment": "part", "case": "both", "repeat": str(repeat)}
        first = (f"s{repeat}", {**labels, "tenant": "small"}, begin_s, begin_s + 16)
        second = (
            f"l{repeat}",
            {**labels, "tenant": "large"},
            begin_s + offset_s,
            begin_s + offset_s + 14,
        )
        runs.append((*first, begin_s + offset_s, (10, 5), (1, 0.5)))
        runs.append((*second, begin_s + 16, (10, 20), (0.5, 1)))
    figures = mix_figures(analyzer, tmp_path, runs, interval_s, dated=dated)

    lengths_s = [16 - offset_s for offset_s in offsets_s]
    truth = {
        "total_per_second": 15.0,
        "small:steps_per_second": 5.0,
        "large:steps_per_second": 10.0,
        "energy_joules": 400 * math.prod(lengths_s) ** (1 / 3),
        "energy_per_unit_joules": 400 / 15,
        "small:energy_per_steps_joules": 40.0,
        "large:energy_per_steps_joules": 20.0,
    }
    if with_solo:
        truth |= {
            "stp": 1.0,
            "antt": 2.0,
            "worst_slowdown": 2.0,
            "small:slowdown": 2.0,
            "large:slowdown": 2.0,
        }
        truth |= {"fairness": 1.0, "jain_index": 1.0, "energy_over_sequential_ratio": 1.0}
    outside = {
        name: (value, figures[name])
        for name, value in truth.items()
        if figures[name]["value_low"] is not None
        and not (
            figures[name]["value_low"] <= value * (1 + 1e-9)
            and figures[name]["value_high"] >= value * (1 - 1e-9)
        )
    }
    assert not outside
    # an overlap of few scrapes has limits more than ten times apart, which are not stated
    if interval_s == 1:
        assert [name for name in truth if figures[name]["value_low"] is None] == []
    if interval_s == 1:
        assert figures["total_per_second"]["value"] == pytest.approx(15, rel=0.1)
