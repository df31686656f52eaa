"""Arithmetic on recordings of real GPUs with an external power meter."""

from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from wattline.contract.power_sensors import sensor_window
from wattline.figures import Figure
from wattline_analyzer.core.devices import Calibration
from wattline_analyzer.core.integrate import trapezoid
from wattline_analyzer.core.samples import Samples, clean
from wattline_analyzer.report.aliasing import aliasing_findings, find_beat, updates
from wattline_analyzer.report.checks import stuck_findings

METERED = Path(__file__).parents[4] / "shared" / "data" / "metered"
BRITISH_SUMMER = timezone(timedelta(hours=1))
METER_SHIFT_S = -0.05
LONGEST_S = 0.25
"""Longest interval that is not a gap: the log has holes of 0.1 s, as long as a sensor update."""

pytestmark = pytest.mark.skipif(
    not METERED.is_dir(), reason=f"{METERED} is missing; its recordings may not be redistributed"
)


def meter(folder) -> Samples:
    """Board power at 4.78 kHz: four rails, volts and amperes in turn, as shared/data/README.md
    describes.
    """
    records = (
        np.frombuffer((folder / "PMD_data.bin").read_bytes(), dtype="<u2")
        .reshape(-1, 9)
        .astype(np.int64)
    )
    ticks = records[:, 0]
    ticks = ticks + 65_536 * np.concatenate([[0], np.cumsum(np.diff(ticks) < 0)])
    values = (records[:, 1:] >> 4) & 0xFFF
    values = np.where(values & 0x800, 0, values)
    power_w = (values[:, 0::2] * 0.007568 * values[:, 1::2] * 0.0488).sum(axis=1)
    start_s = int((folder / "PMD_start_ts.txt").read_text()) / 1e6 + METER_SHIFT_S
    return clean(start_s + (ticks - ticks[0]) / 2_933.5 / 1_000, power_w)


def sensor(folder, column, name="gpudata.csv") -> Samples:
    table = pd.read_csv(folder / name, skipinitialspace=True)
    times = [
        datetime.strptime(text, "%Y/%m/%d %H:%M:%S.%f").replace(tzinfo=BRITISH_SUMMER).timestamp()
        for text in table["timestamp"]
    ]
    return clean(np.array(times), table[column].to_numpy(float))


def edges_s(folder) -> tuple[float, float]:
    times = pd.read_csv(folder / "timestamps.csv")["timestamp"].to_numpy() / 1e6
    return float(times[0]), float(times[-1])


@pytest.mark.parametrize(
    ("name", "column", "calibration", "expected_percent"),
    [
        ("a100_step", "power.draw.instant [W]", (1, 0), -5.65),
        ("a100_step", "power.draw.instant [W]", (0.954, -1.2), -0.16),
        ("k40m_step", "power.draw [W]", (1, 0), 3.03),
        (
            "a100_square_wave",
            "power.draw.instant [W]",
            (1, 0),
            0.02,
        ),  # aliasing happens to cancel the gain error
        ("a100_square_wave", "power.draw.instant [W]", (0.954, -1.2), 5.8),
    ],
)
def test_integral_of_recorded_load_has_published_error(name, column, calibration, expected_percent):
    folder, (gain, offset_w) = METERED / name, calibration
    window = edges_s(folder)
    power = sensor(folder, column)

    true_j = trapezoid(meter(folder), *window).energy_j
    corrected = clean(power.t, (power.value - offset_w) / gain)
    energy_j = trapezoid(corrected, window[0], window[1], LONGEST_S).energy_j

    assert 100 * (energy_j / true_j - 1) == pytest.approx(
        expected_percent, abs=0.05 if calibration != (1, 0) else 0.02
    )


def test_stuck_sensor_of_700_s_is_bad_finding():
    table = pd.read_csv(METERED / "stuck_sensor" / "data.csv", skipinitialspace=True)
    times = [
        datetime.strptime(text, "%Y/%m/%d %H:%M:%S.%f").replace(tzinfo=UTC).timestamp()
        for text in table["timestamp"]
    ]
    power_w = table["power.draw [W]"].str.removesuffix(" W").astype(float).to_numpy()
    no_samples = Samples(np.empty(0), np.empty(0))

    aliasing_findings = stuck_findings(
        "GPU 0", clean(np.array(times), power_w), no_samples, no_samples, simulated=False
    )

    assert [finding.level for finding in aliasing_findings] == ["bad"]
    assert aliasing_findings[0].text.startswith("stuck sensor: exactly 46.19 W for 7")


INSTANT = "power.draw.instant [W]"


def mean_w(power, start_s, end_s):
    return trapezoid(power, start_s, end_s, LONGEST_S).energy_j / (end_s - start_s)


def calibrated_off_percent(name, column, calibration):
    """Difference between the run's calibrated energy and the meter's, in percent."""
    folder = METERED / name
    start_s, end_s = edges_s(folder)
    sensor_w = Figure(trapezoid(sensor(folder, column), start_s, end_s, LONGEST_S).energy_j)
    true_j = trapezoid(meter(folder), start_s, end_s).energy_j
    return 100 * (calibration.energy(sensor_w, end_s - start_s).value / true_j - 1)


def test_calibration_removes_sensor_error_of_step():
    calibration = Calibration("GPU-a100", gain=0.954, offset_w=-1.2)

    assert calibrated_off_percent("a100_step", INSTANT, calibration) == pytest.approx(
        -0.16, abs=0.02
    )


def test_calibration_from_plateaus_leaves_less_than_half_percent():
    folder = METERED / "k40m_step"
    start_s, _ = edges_s(folder)
    idle, busy = (start_s - 1, start_s - 0.1), (start_s + 3, start_s + 5.8)
    sensor_w, meter_w = (
        [mean_w(power, *span) for span in (idle, busy)]
        for power in (sensor(folder, "power.draw [W]"), meter(folder))
    )
    gain = (sensor_w[1] - sensor_w[0]) / (meter_w[1] - meter_w[0])

    calibration = Calibration("GPU-k40m", gain, sensor_w[0] - gain * meter_w[0])

    assert abs(calibrated_off_percent("k40m_step", "power.draw [W]", calibration)) < 0.4


@pytest.mark.parametrize("full_log", [True, False], ids=["the whole log", "the load alone"])
def test_aliasing_square_wave_that_matches_meter_by_chance_is_flagged(full_log):
    folder = METERED / "a100_square_wave"
    power = sensor(folder, INSTANT)
    beat = find_beat(power if full_log else power.between(*edges_s(folder)))

    (finding,) = aliasing_findings(
        "GPU 0", beat, sensor_window("NVIDIA A100-PCIE-40GB", "ampere"), power, counted=False
    )

    assert (finding.level, finding.code) == ("warning", "aliasing")
    assert beat.most_ratio > 0.058  # the error after correction of the gain
    assert beat.apparent_s == pytest.approx(3.4, abs=0.2)  # 104 ms against 101 ms


@pytest.mark.parametrize(
    ("name", "column"), [("a100_step", INSTANT), ("k40m_step", "power.draw [W]")]
)
def test_aliasing_step_is_not_flagged(name, column):
    folder = METERED / name
    power = sensor(folder, column)

    assert find_beat(power) is None
    assert find_beat(power.between(*edges_s(folder))) is None


def test_updates_of_a100_are_101_ms_apart():
    result = updates(sensor(METERED / "a100_update", INSTANT, "A100_gpudata.csv"))

    assert result.period_s == pytest.approx(0.101, abs=0.0005)
