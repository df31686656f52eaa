"""Ranges of time that no run tagged, of nodes with other exporters, through a real Prometheus and VictoriaMetrics."""

import json
import time
from contextlib import closing
from dataclasses import dataclass

import pytest

from analyzer.assess import assess
from analyzer.calibration import Calibration
from analyzer.given import Given
from analyzer.ranged import told
from analyzer.sources.error import SourceError
from analyzer.sources.prometheus import PrometheusSource
from analyzer.sources.ranges.asked import Asked
from analyzer.sources.ranges.loaded import load
from exporter.contract import metrics as m
from tests import servers
from tests.analyzer import foreign
from tests.analyzer.foreign import CARD, END_S, SCRAPES, TRUTH_J, scraped, uuid
from tests.analyzer.loopback import Reply, serving
from tests.analyzer.node import START_S, Gpu, Run, every, scrape, write_history
from tests.analyzer.node import scraped as stored
from tests.analyzer.reported import codes, found

POWER = m.Metric("DCGM_FI_DEV_POWER_USAGE", "gauge", (), "")
FLAT = Gpu([(START_S - 10_000, 200.0)], limit_w=400.0)
HALF_WAY = [t for t in SCRAPES if t < START_S + 300]


def shared_by_pods(t):
    """Time slicing: each pod's row repeats the board; the second pod comes in the middle of the range."""
    pods = ["training"] if t < START_S + 200 else ["training", "notebook"]
    for pod in pods:
        yield from foreign.dcgm(t, exported_pod=pod, pod="dcgm-exporter-x7k2p")


def tagged(t):
    yield from foreign.wattline(t)
    if START_S + 100 <= t <= START_S + 400:
        yield m.RUN_START.name, {"run_id": "train-7"}, START_S + 100
        yield m.RUN_END.name, {"run_id": "train-7"}, START_S + 200
        yield m.RUN_GPU_INFO.name, {"run_id": "train-7", "gpu": "0", "uuid": uuid()}, 1.0


def no_utilization(t):
    return (row for row in foreign.dcgm(t, FLAT) if row[0] != "DCGM_FI_DEV_GPU_UTIL")


def counting(unit):
    """What the exporter shows as millijoules is `unit` times the energy, in J."""
    return lambda t: (
        (name, labels, CARD.energy_j(t) * unit if "ENERGY" in name else value)
        for name, labels, value in foreign.dcgm(t)
    )


CASES = {
    "dcgm": [(foreign.dcgm, "gpu01:9400")],
    "dcgm-lower": [(lambda t: foreign.dcgm(t, host="hostname"), "10.0.0.7:9400")],
    "dcgm-cached": [(lambda t: foreign.dcgm(t, refresh_s=30.0), "gpu01:9400")],
    "mig": [(lambda t: foreign.dcgm(t, mig=("1g.10gb", "1g.10gb", "3g.40gb")), "gpu01:9400")],
    "pods": [(shared_by_pods, "gpu01:9400")],
    "nvml": [(foreign.nvidia_gpu_exporter, "gpu01:9835")],
    "smi": [(lambda t: foreign.nvidia_gpu_exporter(t, nvml=False), "gpu01:9835")],
    "kepler": [(foreign.kepler, "10.0.0.9:28282")],
    "rapl": [(foreign.node_exporter, "gpu01:9100")],
    "rapl-zones": [(lambda t: foreign.node_exporter(t, zone_label=True), "gpu01:9100")],
    "rapl-mirrored": [(lambda t: foreign.node_exporter(t, extra_path=True), "gpu01:9100")],
    "rapl-wraps": [(lambda t: foreign.node_exporter(t, range_j=16_384.0), "gpu01:9100")],
    "all-smi": [(foreign.all_smi, "gpu01:9090")],
    "all-smi-hardware": [(lambda t: foreign.all_smi(t, hardware=True), "gpu01:9090")],
    "wattline": [(foreign.wattline, "gpu01:9847")],
    "ours-and-theirs": [
        (foreign.wattline, "gpu01:9847"),
        (foreign.dcgm, "gpu01:9400"),
        (foreign.nvidia_gpu_exporter, "gpu01:9835"),
    ],
    "two-others": [
        (lambda t: foreign.nvidia_gpu_exporter(t, nvml=False), "gpu01:9835"),
        (foreign.all_smi, "gpu01:9090"),
    ],
    "two-cpus": [
        (lambda t: foreign.kepler(t, gpu=False, node="gpu01.example.org"), "10.0.0.9:28282"),
        (foreign.node_exporter, "gpu01:9100"),
    ],
    "who-is-who": [
        (lambda t: foreign.kepler(t, gpu=False), "10.0.0.9:28282"),
        (foreign.node_exporter, "10.0.0.5:9100"),
    ],
    "two-nodes": [
        (foreign.dcgm, "gpu01:9400"),
        (lambda t: foreign.dcgm(t, index=1, node="gpu02"), "gpu02:9400"),
        (foreign.node_exporter, "gpu01:9100"),
        (foreign.node_exporter, "gpu02:9100"),
        (foreign.node_exporter, "cpu03:9100"),
    ],
    "two-cards": [(lambda t: [*foreign.dcgm(t), *foreign.dcgm(t, index=1)], "gpu01:9400")],
    "tagged": [(tagged, "gpu01:9847")],
    "no-utilization": [(no_utilization, "gpu01:9400")],
    "no-counter-in-truth": [(counting(0.0), "gpu01:9400")],
    "counter-in-joules": [(counting(1.0), "gpu01:9400")],
}
STOPS = {"stops": (foreign.dcgm, "gpu01:9400"), "smi-stops": (CASES["smi"][0][0], "gpu01:9835")}


@pytest.fixture(scope="module")
def lines():
    found = [
        line
        for case, exporters in CASES.items()
        for exporter, instance in exporters
        for line in scraped(exporter, instance, case=case)
    ]
    for case, (exporter, instance) in STOPS.items():
        found += scraped(exporter, instance, HALF_WAY, case=case)
    return found


@pytest.fixture(scope="module")
def prometheus(lines, tmp_path_factory):
    with foreign.prometheus_with(tmp_path_factory.mktemp("prometheus"), lines) as address:
        yield address


@pytest.fixture(scope="module")
def victoria_metrics(lines, tmp_path_factory):
    with foreign.victoria_metrics_with(tmp_path_factory.mktemp("victoria"), lines) as address:
        yield address


@dataclass
class Reporting:
    address: str

    def __call__(self, case, start_s=START_S, end_s=END_S, given=None, **asked):
        matching = {"case": case, **asked.pop("matching", {})}
        with closing(PrometheusSource(self.address)) as source:
            ranged = load(source, Asked(start_s, end_s, matching=matching, **asked), lambda _: None)
        return told(assess(ranged.frames, given or Given()), ranged.findings, ranged.cut, ranged.spacing_s)


@pytest.fixture
def report_of(prometheus):
    return Reporting(prometheus)


def holds(quantity, truth_j, at_most=0.15):
    """The interval has the truth in it and is of use."""
    assert abs(quantity.value - truth_j) <= quantity.half <= at_most * truth_j
    return True


GPU_CASES = ["dcgm", "dcgm-lower", "dcgm-cached", "nvml", "kepler", "all-smi", "all-smi-hardware", "wattline"]


@pytest.mark.parametrize("case", GPU_CASES)
@pytest.mark.parametrize("server", ["prometheus", "victoria_metrics"])
def test_ten_minutes_at_300_watts_are_180_kilojoules_whoever_exports_them(server, case, request):
    report = Reporting(request.getfixturevalue(server))(case)

    assert [device.device for device in report.gpus] == [uuid()]
    assert holds(report.energy["gpu"], TRUTH_J)
    assert report.own.low <= TRUTH_J <= report.own.high
    assert report.own.value == pytest.approx(report.energy["gpu"].value)
    assert report.untagged
    assert report.run_id == "range-20260910T002640Z-600s"
    assert report.gpus[0].methods == ("counter",)


@pytest.mark.parametrize("case", ["rapl", "rapl-zones", "rapl-mirrored"])
@pytest.mark.parametrize("server", ["prometheus", "victoria_metrics"])
def test_raplpackages_and_memory_count_and_neither_core_nor_a_mirrored_zone(server, case, request):
    report = Reporting(request.getfixturevalue(server))(case)

    assert [(d.component, d.device) for d in report.devices] == [("cpu", "0"), ("cpu", "1"), ("dram", "0")]
    assert holds(report.energy["cpu"], 2 * 0.5 * TRUTH_J)
    assert holds(report.energy["dram"], 0.1 * TRUTH_J)


def test_the_exporters_own_values_come_in_our_units(report_of):
    gpu = report_of("dcgm").gpus[0]

    assert gpu.name == "NVIDIA H100 80GB HBM3"
    assert gpu.power_limit_w == 700
    assert gpu.max_power_w == pytest.approx(300.3, abs=0.4)
    assert gpu.instance == "gpu01"


def test_a_scrape_twice_as_often_as_the_exporter_reads_repeats_samples_which_are_left_out(report_of):
    cached, fresh = report_of("dcgm-cached"), report_of("dcgm")

    assert "reads it every 30 s" in found(cached, "cached_samples")[0][1]
    assert "cached_samples" not in codes(fresh)
    assert "gap" not in codes(cached)
    assert "impossible_power" not in codes(cached)
    assert fresh.own.high - fresh.own.low < cached.own.high - cached.own.low


@pytest.mark.parametrize("case", ["mig", "pods"])
def test_rows_that_repeat_the_board_count_it_once(report_of, case):
    report = report_of(case)

    assert len(report.gpus) == 1
    assert holds(report.energy["gpu"], TRUTH_J)


@pytest.mark.parametrize(("case", "energy_j"), [("no-counter-in-truth", 0), ("counter-in-joules", 180)])
def test_a_counter_that_power_contradicts_is_bad(report_of, case, energy_j):
    """300 W for 600 s make 180 kJ, whatever the counter says."""
    report = report_of(case)

    assert report.energy["gpu"].value == pytest.approx(energy_j, abs=2)
    assert [(one.level, one.subject) for one in report.findings if one.code == "counter_implausible"] == [
        ("bad", "GPU 0")
    ]


def test_without_nvml_there_is_power_alone_and_its_integral_has_no_interval(report_of):
    report = report_of("smi")

    assert report.energy["gpu"].value == pytest.approx(TRUTH_J, rel=0.03)
    assert report.energy["gpu"].half is None
    assert report.own is None
    assert report.gpus[0].methods == ("scraped_power",)
    assert report.gpus[0].covered_ratio == pytest.approx(1.0)
    assert "scraped, every 15 s" in found(report, "scraped_power")[0][1]


def test_kepler_zones_are_never_added(report_of):
    report = report_of("kepler")

    assert holds(report.energy["cpu"], 0.5 * TRUTH_J)
    assert holds(report.energy["dram"], 0.1 * TRUTH_J)
    assert report.instances == ("gpu01",)


def test_all_smi_energies_are_taken_by_scope_and_the_chassis_is_not_added(report_of):
    report = report_of("all-smi")

    assert set(report.energy) == {"gpu", "cpu"}
    assert holds(report.energy["cpu"], 0.5 * TRUTH_J)
    assert holds(report.whole, 1.5 * TRUTH_J)


def test_a_card_that_wattline_and_others_show_is_counted_from_wattline_once(report_of):
    report = report_of("ours-and-theirs")

    assert len(report.gpus) == 1
    assert holds(report.energy["gpu"], TRUTH_J)
    said = [text for _, text in found(report, "counted_once")]
    assert len(said) == 2
    assert all("counted from wattline at gpu01:9847" in text for text in said)


def test_of_two_other_exporters_the_one_with_an_energy_counter_counts(report_of):
    report = report_of("two-others")

    assert holds(report.energy["gpu"], TRUTH_J)
    assert [text for subject, text in found(report, "counted_once") if subject == "GPU 0"] == [
        "shown by all-smi at gpu01:9090 and by nvidia-gpu-exporter at gpu01:9835: counted from all-smi at gpu01:9090"
    ]


def test_a_node_with_two_exporters_of_cpu_energy_is_counted_once(report_of):
    report = report_of("two-cpus")

    assert holds(report.energy["cpu"], 0.5 * TRUTH_J)
    assert report.instances == ("gpu01.example.org",)
    assert "counted from kepler" in found(report, "counted_once")[0][1]


def test_where_nobody_knows_whether_two_nodes_are_one_the_second_is_left_out_and_said(report_of):
    report = report_of("who-is-who")

    assert holds(report.energy["cpu"], 0.5 * TRUTH_J)
    assert "node-exporter at 10.0.0.5:9100" in found(report, "node_unknown")[0][1]


def test_nodes_add_up_and_those_without_a_gpu_are_not_taken_for_one(report_of):
    report = report_of("two-nodes")

    assert report.instances == ("cpu03", "gpu01", "gpu02")
    assert holds(report.energy["gpu"], 2 * TRUTH_J)
    assert holds(report.energy["cpu"], 3 * TRUTH_J)


def test_a_register_that_wrapped_is_mended_by_its_range_and_else_a_finding(report_of):
    """150 W for 600 s are 90,000 J: the register of 16,384 J begins again about every 109 s."""
    mended = report_of("rapl-wraps", rapl_ranges_j={"package": 16_384.0, "dram": 16_384.0})
    broken = report_of("rapl-wraps")

    assert holds(mended.energy["cpu"], TRUTH_J)
    assert {subject for subject, _ in found(mended, "rapl_wrap")} == {"CPU 0, CPU 1", "DRAM 0"}
    assert broken.energy["cpu"].value < 0.95 * TRUTH_J
    assert all("--rapl-range-joules" in text for _, text in found(broken, "rapl_wrap"))


def test_a_card_whose_samples_end_in_the_range_has_the_energy_of_that_part_and_no_more(report_of):
    report = report_of("stops")

    assert report.gpus[0].covered_ratio == pytest.approx(0.49, abs=0.02)
    assert report.energy["gpu"].value == pytest.approx(0.49 * TRUTH_J, rel=0.04)
    assert report.own is None
    assert "no energy is made up" in found(report, "uncovered")[0][1]


@pytest.mark.parametrize("case", ["stops", "smi-stops"])
def test_what_is_net_of_idle_or_calibrated_is_of_the_part_that_has_samples(report_of, case):
    """The last scrape comes after 289 s: 240 W above idle for so long, and an offset of 10 W."""
    report = report_of(case, given=Given(calibrations=(Calibration(uuid(), 1.0, 10.0),)))

    (gpu,) = report.gpus
    assert gpu.net.value == pytest.approx(240 * 289, rel=0.02)
    assert gpu.energy.value - gpu.calibrated.value == pytest.approx(10 * 289, abs=0.1)
    assert gpu.mean_power_w.value == pytest.approx(300, rel=0.02)


def test_power_that_stops_is_not_carried_on(report_of):
    report = report_of("smi-stops")

    assert report.energy["gpu"].value == pytest.approx(0.49 * TRUTH_J, rel=0.04)
    assert "coverage" in codes(report)


def test_idle_power_is_that_of_the_quiet_time_around_the_range(report_of):
    report = report_of("dcgm")

    assert report.gpus[0].idle_power_w.value == pytest.approx(60.2, abs=0.4)
    assert holds(report.net, TRUTH_J - 600 * 60.2)


def test_a_steady_load_without_a_known_utilization_is_not_taken_for_idle(report_of):
    report = report_of("no-utilization")

    assert holds(report.energy["gpu"], 200 * 600)
    assert report.net is None
    assert "idle_unknown" in codes(report)


def test_tagged_runs_within_the_range_are_named_and_take_nothing_from_it(report_of):
    report = report_of("tagged")

    assert holds(report.energy["gpu"], TRUTH_J)
    assert not report.gpus[0].shared
    assert "train-7" in found(report, "tagged_runs")[0][1]


@pytest.mark.parametrize("wanted", [("1",), (uuid(1),), (uuid(1).removeprefix("GPU-").upper(),)])
def test_gpus_are_chosen_by_index_or_uuid_however_it_is_written(report_of, wanted):
    report = report_of("two-cards", gpus=wanted)

    assert [device.device for device in report.gpus] == [uuid(1)]
    assert holds(report.energy["gpu"], TRUTH_J)


@pytest.mark.parametrize("node", ["gpu01", "gpu0[01]", "gpu01:9400"])
def test_nodes_are_chosen_by_name_or_address(report_of, node):
    report = report_of("two-nodes", node=node)

    assert report.instances == ("gpu01",)
    assert holds(report.energy["gpu"], TRUTH_J)


def test_a_schema_that_is_named_is_the_only_one_read(report_of):
    report = report_of("ours-and-theirs", schema="nvidia-gpu-exporter")

    assert report.labels["schema"] == "nvidia-gpu-exporter"
    assert "cpu" not in report.energy


def test_emissions_are_the_energy_times_the_given_intensity(report_of):
    """180,000 J are 0.05 kWh: 20 g at 400 g/kWh."""
    report = report_of("dcgm", given=Given(grams_per_kwh=400.0))

    assert [emission.mass_g.value for emission in report.emissions] == [pytest.approx(20, rel=0.02)]


def test_nothing_there_is_one_line_with_what_was_looked_for(report_of):
    with pytest.raises(SourceError) as nothing:
        report_of("no-such-case")
    with pytest.raises(SourceError) as elsewhere:
        report_of("two-nodes", node="gpu0")
    with pytest.raises(SourceError) as gpu:
        report_of("two-cards", gpus=("7",))

    assert "wattline, dcgm-exporter, nvidia-gpu-exporter, kepler, node-exporter, all-smi" in str(nothing.value)
    assert "2026-09-10 00:26:40" in str(nothing.value)
    assert "there are gpu01 (dcgm-exporter), gpu02 (dcgm-exporter)" in str(elsewhere.value)
    assert f"there are 0 ({uuid()} on gpu01), 1 ({uuid(1)} on gpu01)" in str(gpu.value)


def test_the_command_reports_a_range_as_json_and_writes_its_files(analyzer, prometheus, tmp_path):
    out = tmp_path / "out"
    begin = ["--start", "2026-09-10T00:26:40Z", "--end", str(int(END_S)), "--matching", 'case="kepler"']

    done = analyzer("report", "--source", prometheus, *begin, "--format", "json", "--out", out)

    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["run_id"] == "range-20260910T002640Z-600s"
    assert document["untagged_range"] is True
    assert (
        abs(document["energy"]["gpu"]["energy_joules"] - TRUTH_J)
        < document["energy"]["gpu"]["energy_uncertainty_joules"]
    )
    assert {path.name for path in out.iterdir()} >= {"report.html", "timeseries.csv", "metrics.yml"}
    assert "kepler on gpu01" in done.stderr


def test_a_service_that_is_scraped_right_now_has_its_energy_until_the_last_scrape(tmp_path):
    """A board that alternates between 640 W and 72 W, read every 2 s, scraped every second by a real Prometheus."""
    begun_s = time.time()
    card = Gpu([(begun_s - 1_000 + k, 640.0 if k % 2 else 72.0) for k in range(1_200)], limit_w=700.0)

    def respond(path, parameters):
        shown = foreign.exposition(foreign.dcgm(time.time(), card, refresh_s=2.0))
        return Reply(200, shown.encode(), "text/plain; version=0.0.4")

    with (
        serving(respond) as (target, _),
        servers.prometheus(tmp_path, [target]) as address,
        closing(PrometheusSource(address)) as source,
    ):
        deadline_s = begun_s + 60
        while True:
            now_s = time.time()
            seen = source.fetch([POWER], {}, begun_s, now_s)
            if len(seen) and seen["t"].max() - seen["t"].min() > 14:
                break
            assert time.time() < deadline_s
            time.sleep(0.5)
        start_s = float(seen["t"].min()) + 5
        ranged = load(source, Asked(start_s, now_s, until_now=True), lambda _: None)
    report = told(assess(ranged.frames), ranged.findings, ranged.cut, ranged.spacing_s)

    assert start_s + 5 < report.ended_at_s <= now_s
    truth_j = card.energy_j(report.ended_at_s) - card.energy_j(start_s)
    assert report.own.low <= truth_j <= report.own.high
    assert report.instances == ("gpu01",)


def test_wattlines_own_history_file_is_a_source_of_ranges_too(analyzer, tmp_path):
    """Two GPUs at 60 W, and at 300 W from START_S on: in 20 s 6,000 J each."""
    gpus = [Gpu([(START_S - 1_000, 60), (START_S, 300)], index=str(index)) for index in range(2)]
    times = every(1, START_S - 60.5, START_S + 60)
    history = write_history(tmp_path, stored((t, scrape(gpus, Run(end_s=0), t)) for t in times))
    span = ["--start", START_S, "--end", START_S + 20]

    done = analyzer("report", "--source", history, *span, "--gpus", gpus[1].uuid, "--format", "json")
    missing = analyzer("report", "--source", history, "--start", START_S + 5_000, "--end", START_S + 6_000)

    assert done.returncode == 0, done.stderr
    energy = json.loads(done.stdout)["energy"]["gpu"]
    assert abs(energy["energy_joules"] - 6_000) <= energy["energy_uncertainty_joules"] < 1_500
    assert missing.returncode == 1
    assert missing.stderr.count("\n") == 1
    assert "no energy and no power as wattline, dcgm-exporter" in missing.stderr
