"""Units and pitfalls of each exporter, from a real Prometheus and VictoriaMetrics."""

import pytest

from tests.analyzer.report.untagged.foreign_exporters import TRUE_ENERGY_J, uuid
from tests.analyzer.report.untagged.range_reports import is_exact, report_at
from tests.analyzer.run_reports import finding_codes, finding_texts

GPU_CASES = [
    "dcgm",
    "dcgm-lower",
    "dcgm-cached",
    "nvml",
    "kepler",
    "all-smi",
    "all-smi-hardware",
    "wattline",
]


@pytest.mark.parametrize("case", GPU_CASES)
@pytest.mark.parametrize("server", ["prometheus", "victoria_metrics"])
def test_ten_minutes_at_300_w_are_180_kj_from_each_exporter(server, case, request):
    report = report_at(request.getfixturevalue(server), case)

    assert [device.device for device in report.gpus] == [uuid()]
    assert is_exact(report.energy["gpu"], TRUE_ENERGY_J)
    assert (
        report.energies.from_raw_samples.low
        <= TRUE_ENERGY_J
        <= report.energies.from_raw_samples.high
    )
    assert report.energies.from_raw_samples.value == pytest.approx(report.energy["gpu"].value)
    assert report.untagged
    assert report.run_id == "range-20260910T002640Z-600s"
    assert report.gpus[0].methods == ("counter",)


@pytest.mark.parametrize("case", ["rapl", "rapl-zones", "rapl-mirrored"])
@pytest.mark.parametrize("server", ["prometheus", "victoria_metrics"])
def test_rapl_counts_packages_and_dram_without_core_or_mirror(server, case, request):
    report = report_at(request.getfixturevalue(server), case)

    assert [(d.component, d.device) for d in report.devices] == [
        ("cpu", "0"),
        ("cpu", "1"),
        ("dram", "0"),
    ]
    assert is_exact(report.energy["cpu"], 2 * 0.5 * TRUE_ENERGY_J)
    assert is_exact(report.energy["dram"], 0.1 * TRUE_ENERGY_J)


def test_foreign_values_are_in_wattline_units(report_of):
    gpu = report_of("dcgm").gpus[0]

    assert gpu.name == "NVIDIA H100 80GB HBM3"
    assert gpu.power_limit_w == 700
    assert gpu.max_power_w == pytest.approx(300.3, abs=0.4)
    assert gpu.instance == "gpu01"


def test_repeated_samples_of_fast_scrapes_are_left_out(report_of):
    cached, fresh = report_of("dcgm-cached"), report_of("dcgm")

    assert "reads it every 30 s" in finding_texts(cached, "cached_samples")[0][1]
    assert "cached_samples" not in finding_codes(fresh)
    assert "gap" not in finding_codes(cached)
    assert "impossible_power" not in finding_codes(cached)
    assert (
        fresh.energies.from_raw_samples.high - fresh.energies.from_raw_samples.low
        < cached.energies.from_raw_samples.high - cached.energies.from_raw_samples.low
    )


@pytest.mark.parametrize("case", ["mig", "pods"])
def test_rows_that_repeat_a_gpu_are_counted_once(report_of, case):
    report = report_of(case)

    assert len(report.gpus) == 1
    assert is_exact(report.energy["gpu"], TRUE_ENERGY_J)


def test_counter_that_never_rises_is_replaced_by_power(report_of):
    """A counter of 0 is no reading; the energy is the integral of scraped power."""
    report = report_of("no-counter-in-truth")

    assert report.energy["gpu"].value == pytest.approx(TRUE_ENERGY_J, rel=0.03)
    assert abs(report.energy["gpu"].value - TRUE_ENERGY_J) <= report.energy["gpu"].half_width
    assert [(one.level, one.subject) for one in report.findings if one.code == "counter_dead"] == [
        ("warning", "GPU 0")
    ]


def test_counter_that_contradicts_power_is_bad(report_of):
    """300 W for 600 s are 180 kJ; the counter is in joules instead of millijoules."""
    report = report_of("counter-in-joules")

    assert report.energy["gpu"].value == pytest.approx(180, abs=2)
    assert [
        (one.level, one.subject) for one in report.findings if one.code == "counter_implausible"
    ] == [("bad", "GPU 0")]


def test_power_without_counter_has_integral_with_sampling_interval(report_of):
    report = report_of("smi")

    assert report.energy["gpu"].value == pytest.approx(TRUE_ENERGY_J, rel=0.03)
    assert abs(report.energy["gpu"].value - TRUE_ENERGY_J) <= report.energy["gpu"].half_width
    assert report.energies.from_raw_samples is None
    assert report.gpus[0].methods == ("scraped_power",)
    assert report.gpus[0].covered_ratio == pytest.approx(1.0)
    assert "scraped every 15 s" in finding_texts(report, "scraped_power")[0][1]


def test_kepler_zones_are_not_summed(report_of):
    report = report_of("kepler")

    assert is_exact(report.energy["cpu"], 0.5 * TRUE_ENERGY_J)
    assert is_exact(report.energy["dram"], 0.1 * TRUE_ENERGY_J)
    assert report.instances == ("gpu01",)


def test_all_smi_energy_is_by_scope_without_chassis(report_of):
    report = report_of("all-smi")

    assert set(report.energy) == {"gpu", "cpu"}
    assert is_exact(report.energy["cpu"], 0.5 * TRUE_ENERGY_J)
    assert is_exact(report.energies.whole, 1.5 * TRUE_ENERGY_J)


def test_wrapped_counter_is_unwrapped_or_a_finding(report_of):
    """150 W for 600 s are 90,000 J: the counter of 16,384 J wraps about every 109 s."""
    mended = report_of("rapl-wraps", rapl_ranges_j={"package": 16_384.0, "dram": 16_384.0})
    broken = report_of("rapl-wraps")

    assert is_exact(mended.energy["cpu"], TRUE_ENERGY_J)
    assert {subject for subject, _ in finding_texts(mended, "rapl_wrap")} == {
        "CPU 0, CPU 1",
        "DRAM 0",
    }
    assert broken.energy["cpu"].value < 0.95 * TRUE_ENERGY_J
    assert all("--rapl-range-joules" in text for _, text in finding_texts(broken, "rapl_wrap"))
