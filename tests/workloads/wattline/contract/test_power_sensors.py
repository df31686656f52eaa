import pytest

from wattline.contract.power_sensors import (
    SystematicBand,
    band_limits_j,
    sensor_window,
    systematic_band,
)


@pytest.mark.parametrize(
    ("name", "architecture", "seen_ratio"),
    [
        ("NVIDIA A100-SXM4-80GB", "ampere", 0.25),
        ("NVIDIA H100 80GB HBM3", "hopper", 0.25),
        ("Tesla V100-SXM2-16GB", "volta", 0.5),
        ("NVIDIA A40", "ampere", 1),
        ("NVIDIA A30", "ampere", 0.25),
        ("NVIDIA RTX A3000", "ampere", 1),
    ],
)
def test_sensor_window_known_gpu_has_its_measured_ratio(name, architecture, seen_ratio):
    assert sensor_window(name, architecture).seen_ratio == seen_ratio


@pytest.mark.parametrize(
    ("name", "architecture"),
    [("NVIDIA B200", "blackwell"), ("NVIDIA H200", "hopper"), ("NVIDIA GH200 480GB", "hopper")],
)
def test_sensor_window_unknown_gpu_is_none(name, architecture):
    assert sensor_window(name, architecture) is None


@pytest.mark.parametrize(
    ("name", "architecture", "expected"),
    [
        ("NVIDIA A100-SXM4-80GB", "ampere", ("GA100", -6, 3)),
        (
            "NVIDIA H100 80GB HBM3",
            "hopper",
            ("GH100, none metered, so the default of its class", -6, 6),
        ),
        (
            "NVIDIA H200",
            "hopper",
            ("no GPU of this architecture was metered; the band of most GPUs", -9, 3),
        ),
        ("NVIDIA A40", "ampere", ("Ampere GA10x", -7, 3)),
        ("NVIDIA L4", "ada", ("Ada", -6, 3)),
        ("Quadro RTX 4000", "turing", ("Turing", -8, 13)),
        ("NVIDIA RTX A3000", "ampere", ("Ampere GA10x", -7, 3)),
        ("Tesla K40m", "kepler", ("Kepler", -9, 4)),
        (
            "NVIDIA B200",
            "blackwell",
            ("no GPU of this architecture was metered; the band of most GPUs", -9, 3),
        ),
    ],
)
def test_systematic_band_of_architecture_is_the_measured_one(name, architecture, expected):
    band = systematic_band(name, architecture)

    assert (band.architecture, band.low_percent, band.high_percent) == expected


def test_sensor_limits_invert_band_of_the_reading():
    """A reading of 9,400 J that is 6 % too low is 10,000 J."""
    low_j, high_j = band_limits_j(9_400, SystematicBand("GA100", -6, 3))

    assert high_j == pytest.approx(600)
    assert low_j == pytest.approx(9_400 / 1.03 - 9_400)
