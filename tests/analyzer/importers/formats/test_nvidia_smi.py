"""Import of power logs of nvidia-smi."""

from datetime import datetime
from zoneinfo import ZoneInfo

import pytest

from tests.analyzer.importers.sample_files import (
    BEGIN_S,
    component_energy_j,
    finding_texts_of,
    local_time,
    single_report,
    write_nvidia_smi_log,
)


def test_nvidia_smi_log_includes_all_gpus_by_timestamps(imported, tmp_path):
    # GPU 0: 200 W x 30 s = 6,000 J; GPU 1: 300 W x 30 s = 9,000 J
    log = write_nvidia_smi_log(tmp_path / "log.csv", [(0.5 + t, 200, 300) for t in range(31)])

    report = single_report(imported(log))

    assert component_energy_j(report) == pytest.approx(15_000, rel=1e-9)
    assert [device.device for device in report.devices] == ["GPU-a", "GPU-b"]
    assert "power sampled every 1 s" in finding_texts_of(report, "imported")[0]
    assert finding_texts_of(report, "whole_log")


@pytest.mark.parametrize("seconds", [120, 20_400], ids=["whole", "downsampled"])
def test_nvidia_smi_log_energy_has_one_interval_in_all_places(imported, tmp_path, seconds):
    """Jumps of 200 W between samples 1 s apart, four in 40 s, each with a standard deviation of 200
    J / √12.
    """
    jumps = seconds // 10 - 1
    log = write_nvidia_smi_log(
        tmp_path / "log.csv",
        [(t, 300 if t % 40 < 3 or 11 <= t % 40 < 26 else 100) for t in range(seconds)],
    )

    report = single_report(imported(log))

    budget = report.budgets[report.devices[0].key]
    assert report.headline.half_width == budget.random_j
    assert budget.edges_j == pytest.approx(
        100
    )  # power.draw is a mean over 1 s: 300 W before the start, 100 W at the end
    assert report.headline.half_width == pytest.approx(1.96 * 200 * (jumps / 12) ** 0.5, rel=0.3)
    assert "its 95 % CI is for changes of the power" in finding_texts_of(report, "imported")[0]


def test_nvidia_smi_log_without_changes_has_no_interval(imported, tmp_path):
    report = single_report(
        imported(write_nvidia_smi_log(tmp_path / "log.csv", [(t, 200) for t in range(31)]))
    )

    assert report.headline.half_width is None
    assert report.budgets[report.devices[0].key].random_j is None
    assert "its uncertainty is unknown" in finding_texts_of(report, "imported")[0]


def test_nvidia_smi_log_local_time_uses_given_zone(imported, tmp_path):
    report = single_report(
        imported(
            write_nvidia_smi_log(tmp_path / "log.csv", [(t, 100) for t in range(11)]), zone="+01:00"
        )
    )

    assert report.started_at_s == BEGIN_S - 3_600


@pytest.mark.parametrize("change", ["2024-10-27T01:00+00:00", "2024-03-31T01:00+00:00"])
def test_nvidia_smi_log_across_change_of_clocks_counts_each_hour_once(imported, tmp_path, change):
    """100 W for two hours, and 400 W for the two after the change: 3,600,000 J."""
    begin_s = datetime.fromisoformat(change).timestamp() - 7_200
    watts = [(begin_s + 60 * n, 100 if n < 120 else 400) for n in range(241)]
    zone = ZoneInfo("Europe/Berlin")
    lines = [
        f"{datetime.fromtimestamp(t_s, zone):%Y/%m/%d %H:%M:%S.000}, 0, GPU-a, {power} W"
        for t_s, power in watts
    ]
    log = tmp_path / "log.csv"
    log.write_text("\n".join(["timestamp, index, uuid, power.draw [W]", *lines, ""]))

    report = single_report(imported(log, zone="Europe/Berlin"))

    assert report.duration_s == 14_400
    assert component_energy_j(report) == pytest.approx(
        100 * 7_140 + 250 * 60 + 400 * 7_200
    )  # a ramp of one minute


@pytest.mark.parametrize(
    ("times", "note"),
    [
        (
            ("01:30Z", 60, "01:30Z"),
            "read as the second one (+00:00), because the log goes on in the next hour",
        ),
        (("00:30Z", 60, "00:30Z"), "its times are read in rising order"),
        (
            ("00:10Z", 40, "00:10Z"),
            "read as the first one (+01:00); for the second one give --timezone +00:00",
        ),
        (
            ("01:10Z", 40, "00:10Z"),
            "read as the first one (+01:00); for the second one give --timezone +00:00",
        ),
    ],
)
def test_nvidia_smi_log_that_starts_in_repeated_hour(call, imported, tmp_path, times, note):
    """200 W; the clocks are set back at 01:00 UTC; a log inside one hour does not show which one it
    is.
    """
    start, minutes, begins = times
    begin_s, assumed_s = (
        datetime.fromisoformat(f"2024-10-27T{text}").timestamp() for text in (start, begins)
    )
    zone = ZoneInfo("Europe/London")
    lines = [
        f"{datetime.fromtimestamp(begin_s + 60 * n, zone):%Y/%m/%d %H:%M:%S.000}"
        for n in range(minutes + 1)
    ]
    log = tmp_path / "log.csv"
    log.write_text(
        "\n".join(
            ["timestamp, index, power.draw [W]", *(f"{line}, 0, 200 W" for line in lines), ""]
        )
    )

    report = single_report(imported(log, zone="Europe/London"))
    _, _, stderr = call(
        "import", log, "--out", tmp_path / "other.sqlite", "--timezone", "Europe/London"
    )

    assert (report.started_at_s, report.duration_s) == (assumed_s, 60 * minutes)
    assert component_energy_j(report) == pytest.approx(200 * 60 * minutes)
    assert note in stderr


def test_power_log_idle_time_gives_idle_power(imported, tmp_path):
    # 60 s idle at 50 W, 40 s at 300 W, 60 s idle at 50 W: the run is 300 W x 40 s = 12,000 J, net
    # 250 W x 40 s
    load = [(t, 50 if t < 60 or t > 100 else 300) for t in range(161)]
    log = write_nvidia_smi_log(tmp_path / "log.csv", load)

    report = single_report(
        imported(log, "--start", BEGIN_S + 60, "--end", BEGIN_S + 100, "--run-id", "burst")
    )

    assert component_energy_j(report) == pytest.approx(12_000, rel=1e-9)
    assert report.devices[0].idle_power_w.value == pytest.approx(50)
    assert report.devices[0].net.value == pytest.approx(10_000)
    assert not finding_texts_of(report, "whole_log")


@pytest.mark.parametrize("more", ["", ", 100 %"], ids=["power only", "with utilization"])
def test_power_log_gpu_without_power_is_reported(call, imported, tmp_path, more):
    """GPU 0 with 200 W for 10 s, and GPU 1 whose power is never known."""
    lines = [
        f"{local_time(t, '%Y/%m/%d %H:%M:%S.000')}, {gpu}, {power}{more}"
        for t in range(11)
        for gpu, power in enumerate(("200 W", "[N/A]"))
    ]
    log = tmp_path / "log.csv"
    columns = f"timestamp, index, power.draw [W]{', utilization.gpu [%]' if more else ''}"
    log.write_text("\n".join([columns, *lines, ""]))

    report = single_report(imported(log))
    _, _, stderr = call("import", log, "--out", tmp_path / "other.sqlite", "--timezone", "UTC")

    assert component_energy_j(report) == pytest.approx(2_000)
    assert "energy of the run is higher" in finding_texts_of(report, "gpus_without_energy")[0]
    assert f"{log}: no power in 11 lines of GPU 1" in stderr
    assert "has no energy of GPU 1: the energy of the run is higher" in stderr


def test_power_log_gpu_outside_of_run_is_reported(imported, tmp_path):
    """GPU 1 has samples before the run only."""
    lines = [f"{local_time(t, '%Y/%m/%d %H:%M:%S.000')}, 0, GPU-a, 200 W" for t in range(61)]
    lines += [f"{local_time(t, '%Y/%m/%d %H:%M:%S.000')}, 1, GPU-b, 300 W" for t in range(11)]
    log = tmp_path / "log.csv"
    log.write_text("\n".join(["timestamp, index, uuid, power.draw [W]", *lines, ""]))

    report = single_report(imported(log, "--start", BEGIN_S + 30, "--end", BEGIN_S + 60))

    assert component_energy_j(report) == pytest.approx(6_000)
    assert finding_texts_of(report, "gpus_without_energy")


def test_power_log_gap_is_not_integrated(imported, tmp_path):
    # 100 W in [0, 20] and [40, 60]: 4,000 J are known, and a third of the minute is not
    log = write_nvidia_smi_log(
        tmp_path / "log.csv", [(t, 100) for t in (*range(21), *range(40, 61))]
    )

    report = single_report(imported(log))

    assert component_energy_j(report) == pytest.approx(4_000, rel=1e-9)
    assert report.devices[0].covered_ratio == pytest.approx(2 / 3)
    assert "their energy is not included" in finding_texts_of(report, "gap")[0]
    assert "mean power of the run are higher" in finding_texts_of(report, "uncovered")[0]


def test_power_log_of_same_node_and_time_is_not_merged(call, imported, tmp_path):
    imported(
        write_nvidia_smi_log(tmp_path / "log.csv", [(t, 100) for t in range(11)]), "--node", "n1"
    )
    other = write_nvidia_smi_log(tmp_path / "other.csv", [(t, 200) for t in range(11)])

    code, _, stderr = call(
        "import", other, "--out", tmp_path / "history.sqlite", "--node", "n1", "--timezone", "UTC"
    )

    assert code == 1
    assert "--node" in stderr


@pytest.mark.parametrize("starts_at_s", [20.0, 20.4, 21.0])
@pytest.mark.parametrize("ends_at_s", [40.0, 39.5])
def test_nvidia_smi_interval_contains_the_lag_of_a_mean_over_a_second(
    imported, tmp_path, starts_at_s, ends_at_s
):
    # 100 W, 600 W from `starts_at_s` to `ends_at_s`, then 100 W; each value is the mean over the
    # second before it
    def joules(t_s):
        return 100 * t_s + 500 * (min(max(t_s, starts_at_s), ends_at_s) - starts_at_s)

    lines = ["timestamp,index,uuid,power.draw [W]"]
    times_s = [0.1 * step for step in range(600)]
    lines += [
        f"{local_time(t_s, '%Y-%m-%d %H:%M:%S.%f')},0,G,{joules(t_s) - joules(t_s - 1):.3f}"
        for t_s in times_s
    ]
    (tmp_path / "smi.csv").write_text("\n".join(lines))
    edges = ("--start", local_time(20), "--end", local_time(40))

    report = single_report(imported(tmp_path / "smi.csv", *edges))
    (gpu,) = report.gpus

    error_j = gpu.energy.value - (joules(40) - joules(20))
    assert abs(error_j) <= gpu.energy.half_width
    assert gpu.energy.half_width < 500
    assert report.budgets[gpu.key].edges_j == pytest.approx(gpu.energy.half_width, rel=0.2)
