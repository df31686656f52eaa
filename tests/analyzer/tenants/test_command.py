"""Output of `analyzer tenants`."""

import json

import pytest

from tests.analyzer.node import START_S, NodeGpu, scrape_times, series_of_scrapes, write_history
from wattline.contract import metrics as m

GPU = NodeGpu([(START_S - 500, 60), (START_S, 300)])
LOAD_S, LAG_S = 2.0, 6.0
"""Length of the phase load, and age of the newest seconds and joules of a phase until the run has
ended.
"""


def tenant_series(run_id, labels, begin_s, end_s, rate, watts, t, p99=0.1, *, starts=True):  # noqa: PLR0917  # the fields of a run, in the order of the list
    """Series of a run whose phase measure starts after 2 s; `watts` are attributed to it.

    As an exporter's: work and attributed energy are current, phases late. Old exporters have no
    `starts` of phases.
    """
    if not begin_s <= t <= end_s + 300:
        return
    run_labels, until_s = {"run_id": run_id}, min(t, end_s)
    in_measure_s = max(until_s - begin_s - LOAD_S, 0.0)
    shown_s = (end_s if t >= end_s else t - LAG_S) - begin_s
    device = {"component": "gpu", "device": GPU.uuid}
    yield (
        m.RUN_INFO,
        {**run_labels, "workload": "llm-forward", **{f"label_{k}": v for k, v in labels.items()}},
        1.0,
    )
    yield m.RUN_START, run_labels, begin_s
    yield m.RUN_DURATION, run_labels, until_s - begin_s
    if t >= end_s:
        yield m.RUN_END, run_labels, end_s
        yield m.RUN_OUTCOME, {**run_labels, "outcome": "ok"}, 1.0
        yield m.RUN_RESULT, {**run_labels, "name": "latency_seconds_p99"}, p99
    yield m.RUN_GPU_INFO, {**run_labels, "gpu": "0", "uuid": GPU.uuid}, 1.0
    yield m.RUN_ENERGY, {**run_labels, **device}, GPU.energy_j(until_s) - GPU.energy_j(begin_s)
    yield (
        m.RUN_ATTRIBUTED_ENERGY,
        {**run_labels, **device, "policy": "idle_shared"},
        watts * (until_s - begin_s),
    )
    yield m.RUN_WORK, {**run_labels, "unit": "tokens"}, rate * in_measure_s
    for phase, start_s, phase_s in (
        ("load", 0.0, min(shown_s, LOAD_S)),
        ("measure", LOAD_S, shown_s - LOAD_S),
    ):
        if phase_s > 0:
            labels = {**run_labels, "phase": phase}
            yield m.RUN_PHASE_SECONDS, labels, phase_s
            yield m.RUN_PHASE_ENERGY, {**labels, "component": "gpu"}, 300 * phase_s
            if t >= end_s:
                yield m.RUN_PHASE_ENERGY_UNCERTAINTY, {**labels, "component": "gpu"}, 3.0
            if starts:
                yield m.RUN_PHASE_START, labels, begin_s + start_s
    if shown_s > LOAD_S:
        yield (
            m.RUN_PHASE_WORK,
            {**run_labels, "phase": "measure", "unit": "tokens"},
            rate * in_measure_s,
        )


@pytest.fixture(scope="module")
def history(tmp_path_factory):
    """Return a history of solo runs and overlaps.

    Alone 100 and 50 tokens/s at 300 W; together 80 and 20, with MPS 90 and 30, at 180 and 120 W.
    `large` starts 5 s after `small` and ends 3 s before it, so the overlap is the phase measure of
    `large`: 30 s of 38.
    """
    runs = []
    for i, (name, rate) in enumerate((("small", 100), ("large", 50))):
        begin_s = START_S + 100 * i
        runs.append(
            (
                f"alone-{name}",
                {"experiment": "pair", "case": name},
                begin_s,
                begin_s + 42,
                rate,
                300,
                0.05,
            )
        )
    for i in range(4):
        mps, begin_s = i % 2 == 1, START_S + 200 + 100 * i
        labels = {
            "experiment": "pair",
            "case": f"both-{mps}",
            "mps": str(mps).lower(),
            "repeat": str(i // 2),
        }
        rates = (90, 30) if mps else (80, 20)
        runs.append(
            (
                f"s{i}",
                {**labels, "tenant": "small"},
                begin_s,
                begin_s + 40,
                rates[0] + i // 2,
                180,
                0.1,
            )
        )
        runs.append(
            (f"l{i}", {**labels, "tenant": "large"}, begin_s + 5, begin_s + 37, rates[1], 120, 0.2)
        )
    scrapes = []
    for t in scrape_times(1, START_S - 30, START_S + 700):
        values = [
            (m.BUILD_INFO, {"version": "1"}, 1.0),
            (m.GPU_ENERGY, {"gpu": "0", "uuid": GPU.uuid}, GPU.energy_j(t)),
        ]
        values.append((m.GPU_POWER, {"gpu": "0", "uuid": GPU.uuid}, GPU.power_w(t)))
        for run_id, labels, begin_s, end_s, rate, watts, p99 in runs:
            values += tenant_series(run_id, labels, begin_s, end_s, rate, watts, t, p99)
        scrapes.append((t, values))
    return write_history(tmp_path_factory.mktemp("tenants"), series_of_scrapes(scrapes))


def test_tenants_command_uses_the_overlap(analyzer, history):
    command = ("tenants", "--experiment", "pair", "--source", history, "--since", "36500d")
    completed, table = analyzer(*command, "--format", "json"), analyzer(*command)

    assert completed.returncode == 0, completed.stderr
    document = json.loads(completed.stdout)
    without_mps, with_mps = document["mixes"]
    assert (without_mps["mps"], with_mps["mps"], without_mps["repeats"]) == (False, True, 2)
    assert without_mps["overlap_seconds"] == pytest.approx(30, abs=0.01)
    assert without_mps["least_overlap_ratio"] == pytest.approx(30 / 38, abs=0.01)
    figures = without_mps["figures"]
    assert figures["small:tokens_per_second"]["value"] == pytest.approx((80 * 81) ** 0.5, rel=1e-3)
    assert figures["large:tokens_per_second"]["value"] == pytest.approx(20, rel=1e-3)
    assert figures["stp"]["value"] == pytest.approx(1.205, rel=1e-3)  # 0.8 and 0.81, and 0.4
    assert figures["energy_joules"]["value"] == pytest.approx(
        9_000, rel=1e-3
    )  # (180 + 120) W x 30 s
    # alone: 300 W for 100 tokens/s and for 50 are 3 J and 6 J a token: 30 x (80.5 x 3 + 20 x 6) J
    assert figures["energy_over_sequential_ratio"]["value"] == pytest.approx(
        9_000 / (30 * 361.5), rel=2e-3
    )
    assert figures["large:latency_seconds_p99_over_solo_ratio"]["value"] == pytest.approx(4)
    by_figure = {entry["figure"]: entry for entry in document["mps_against_none"]}
    assert by_figure["total_per_second"]["ratio"] == pytest.approx(120.5 / 100.5, rel=1e-3)
    assert by_figure["total_per_second"]["clear"]
    assert by_figure["total_per_second"]["cliffs_delta"] == 1
    assert "large starves" in table.stdout


def test_tenants_command_solo_run_can_be_named(analyzer, history):
    command = (
        "tenants",
        "--experiment",
        "pair",
        "--source",
        history,
        "--since",
        "36500d",
        "--format",
        "json",
    )
    document = json.loads(
        analyzer(*command, "--solo", "large=case=small", "--solo", "small=alone-small").stdout
    )

    assert document["mixes"][0]["figures"]["large:slowdown"]["value"] == pytest.approx(
        5, rel=1e-3
    )  # 20 of 100 tokens/s
    assert document["mixes"][0]["figures"]["small:slowdown"]["value"] == pytest.approx(
        100 / 80.5, rel=1e-3
    )


def test_tenants_command_unknown_unit_has_no_throughput(analyzer, history):
    command = (
        "tenants",
        "--experiment",
        "pair",
        "--source",
        history,
        "--since",
        "36500d",
        "--format",
        "json",
    )
    mixes = [
        json.loads(analyzer(*command, "--unit", unit).stdout)["mixes"][0]["figures"]
        for unit in ("tokens", "steps")
    ]

    assert "stp" in mixes[0]
    assert not {"stp", "total_per_second"} & mixes[1].keys()


def test_tenants_command_without_tenants_is_one_line(analyzer, history):
    completed = analyzer(
        "tenants", "--experiment", "none", "--source", history, "--since", "36500d"
    )

    assert completed.returncode == 1
    assert "no run with experiment=none" in completed.stderr


def shared_gpu_history(folder, interval_s, *, starts):
    """Two equal tenants for 25 s after a load of 2 s, each with half of the rate and of the 300 W,
    and each alone.
    """
    runs = []
    for position, name in enumerate(("a", "b")):
        begin_s = START_S + 100 * position
        runs.append(
            (f"alone-{name}", {"experiment": "even", "case": name}, begin_s, begin_s + 27, 100, 300)
        )
        runs.append(
            (
                f"shared-{name}",
                {"experiment": "even", "tenant": name},
                START_S + 203.4,
                START_S + 230.4,
                50,
                150,
            )
        )
    scrapes = []
    for t in scrape_times(interval_s, START_S - 30, START_S + 400):
        gpu_labels = {"gpu": "0", "uuid": GPU.uuid}
        values = [(m.BUILD_INFO, {"version": "1"}, 1.0), (m.GPU_POWER, gpu_labels, GPU.power_w(t))]
        values.append((m.GPU_ENERGY, gpu_labels, GPU.energy_j(t)))
        for run in runs:
            values += tenant_series(*run, t, starts=starts)
        scrapes.append((t, values))
    return write_history(folder, series_of_scrapes(scrapes))


@pytest.mark.parametrize(("interval_s", "starts"), [(1, True), (15, True), (1, False)])
def test_tenants_command_late_phases_share_gpu_evenly(analyzer, tmp_path, interval_s, starts):
    """Half the rate each is a slowdown of 2 and an STP of 1; 300 W for 100 tokens/s are 3 J a token
    in both cases.
    """
    history = shared_gpu_history(tmp_path, interval_s, starts=starts)

    completed = analyzer(
        "tenants",
        "--experiment",
        "even",
        "--source",
        history,
        "--since",
        "36500d",
        "--format",
        "json",
    )

    assert completed.returncode == 0, completed.stderr
    (mix,) = json.loads(completed.stdout)["mixes"]
    assert mix["overlap_seconds"] == pytest.approx(25, abs=0.01)
    figures = {name: figure["value"] for name, figure in mix["figures"].items()}
    assert figures["total_per_second"] == pytest.approx(100, rel=2e-3)
    assert figures["stp"] == pytest.approx(1, rel=2e-3)
    assert figures["worst_slowdown"] == pytest.approx(2, rel=2e-3)
    assert figures["energy_joules"] == pytest.approx(7_500, rel=2e-3)
    assert figures["energy_over_sequential_ratio"] == pytest.approx(1, rel=2e-3)


def short_energy(analyzer, folder, phase_half_j):
    """Return the figures of two tenants with 4 s at 300 W after 10 s of loading at 60 W, scraped
    every 15 s: 1,200 J, which no scrape shows.
    """
    gpu = NodeGpu([(START_S - 500, 60), (START_S + 10, 300), (START_S + 14, 60)])
    end_s = START_S + 14
    scrapes = []
    for t in scrape_times(15, START_S - 31, START_S + 120):
        gpu_labels = {"gpu": "0", "uuid": gpu.uuid}
        values = [(m.BUILD_INFO, {"version": "1"}, 1.0), (m.GPU_POWER, gpu_labels, gpu.power_w(t))]
        values.append((m.GPU_ENERGY, gpu_labels, gpu.energy_j(t)))
        for name in ("a", "b"):
            values += (
                short_tenant(gpu, name, min(t, end_s), phase_half_j, is_over=t >= end_s)
                if t >= START_S
                else ()
            )
        scrapes.append((t, values))
    history = write_history(folder, series_of_scrapes(scrapes))

    completed = analyzer(
        "tenants",
        "--experiment",
        "short",
        "--source",
        history,
        "--since",
        "36500d",
        "--format",
        "json",
    )

    assert completed.returncode == 0, completed.stderr
    (mix,) = json.loads(completed.stdout)["mixes"]
    figures: dict = mix["figures"]
    return figures


def test_tenants_command_energy_of_a_short_overlap_is_that_of_the_phases(analyzer, tmp_path):
    figures = short_energy(analyzer, tmp_path, 6.0)

    energy = figures["energy_joules"]
    assert energy["value"] == pytest.approx(1_200, abs=6)
    assert (energy["value_low"], energy["value_high"]) == pytest.approx((1_194, 1_206))
    # by samples 15 s apart, the 600 J of a tenant may be 0, so that their limits say nothing
    assert figures["a:energy_per_tokens_joules"]["value_low"] is None


def test_tenants_command_phase_of_unknown_half_width_sets_no_limits(analyzer, tmp_path):
    """The limits are those of the samples alone, which may miss all of the energy."""
    energy = short_energy(analyzer, tmp_path, None)["energy_joules"]

    assert energy["value"] > 0
    assert (energy["value_low"], energy["value_high"]) == (None, None)


def short_tenant(gpu, name, until_s, phase_half_j, *, is_over):
    """Series of a run from START_S on that loads for 10 s and measures until 14 s; its share is
    half of the GPU's.
    """
    run, device = {"run_id": f"short-{name}"}, {"component": "gpu", "device": gpu.uuid}
    used_j = gpu.energy_j(until_s) - gpu.energy_j(START_S)
    yield (
        m.RUN_INFO,
        {**run, "workload": "w", "label_experiment": "short", "label_tenant": name},
        1.0,
    )
    yield m.RUN_START, run, START_S
    yield m.RUN_DURATION, run, until_s - START_S
    yield m.RUN_GPU_INFO, {**run, "gpu": "0", "uuid": gpu.uuid}, 1.0
    yield m.RUN_ENERGY, {**run, **device}, used_j
    yield m.RUN_ATTRIBUTED_ENERGY, {**run, **device, "policy": "idle_shared"}, used_j / 2
    if is_over:
        yield m.RUN_END, run, until_s
        yield m.RUN_OUTCOME, {**run, "outcome": "ok"}, 1.0
        yield m.RUN_WORK, {**run, "unit": "tokens"}, 100.0
        for phase, begin_s, end_s in (
            ("load", START_S, START_S + 10),
            ("measure", START_S + 10, until_s),
        ):
            labels = {**run, "phase": phase}
            yield m.RUN_PHASE_START, labels, begin_s
            yield m.RUN_PHASE_SECONDS, labels, end_s - begin_s
            yield (
                m.RUN_PHASE_ENERGY,
                {**labels, "component": "gpu"},
                gpu.energy_j(end_s) - gpu.energy_j(begin_s),
            )
            if phase_half_j is not None:
                uncertain = {**labels, "component": "gpu"}
                yield m.RUN_PHASE_ENERGY_UNCERTAINTY, uncertain, phase_half_j
            if phase == "measure":
                yield m.RUN_PHASE_WORK, {**labels, "unit": "tokens"}, 100.0
