"""Each exporter's units and traps, through a real Prometheus and a real VictoriaMetrics."""

import pytest

from tests.analyzer.ranges.foreign import TRUTH_J, uuid
from tests.analyzer.ranges.reporting import holds, report_at
from tests.analyzer.reported import codes, found

GPU_CASES = ["dcgm", "dcgm-lower", "dcgm-cached", "nvml", "kepler", "all-smi", "all-smi-hardware", "wattline"]


@pytest.mark.parametrize("case", GPU_CASES)
@pytest.mark.parametrize("server", ["prometheus", "victoria_metrics"])
def test_ten_minutes_at_300_watts_are_180_kilojoules_whoever_exports_them(server, case, request):
    report = report_at(request.getfixturevalue(server), case)

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
    report = report_at(request.getfixturevalue(server), case)

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


def test_a_register_that_wrapped_is_mended_by_its_range_and_else_a_finding(report_of):
    """150 W for 600 s are 90,000 J: the register of 16,384 J begins again about every 109 s."""
    mended = report_of("rapl-wraps", rapl_ranges_j={"package": 16_384.0, "dram": 16_384.0})
    broken = report_of("rapl-wraps")

    assert holds(mended.energy["cpu"], TRUTH_J)
    assert {subject for subject, _ in found(mended, "rapl_wrap")} == {"CPU 0, CPU 1", "DRAM 0"}
    assert broken.energy["cpu"].value < 0.95 * TRUTH_J
    assert all("--rapl-range-joules" in text for _, text in found(broken, "rapl_wrap"))
