"""Share of time that instantaneous power covers, by GPU name and architecture."""

import pytest

from wattline_exporter.meter.plausibility import has_short_window, sensor_share


@pytest.mark.parametrize(
    ("name", "architecture", "ratio"),
    [
        ("NVIDIA A100-SXM4-80GB", "Ampere", 0.25),
        ("NVIDIA A30", "Ampere", 0.25),
        ("NVIDIA RTX A3000 Laptop GPU", "Ampere", 1.0),
        ("NVIDIA A10", "Ampere", 1.0),
        ("NVIDIA H200", "Hopper", 0.25),
        ("NVIDIA GeForce RTX 4090", "Ada", 1.0),
        ("Tesla T4", "Turing", 1.0),
        ("Tesla P100-PCIE-16GB", "Pascal", 0.5),
        ("NVIDIA B200", "Blackwell", 0.25),
        ("a future GPU", "", 0.25),
    ],
)
def test_sensor_share_known_and_unknown_architectures(name, architecture, ratio):
    assert sensor_share(name, architecture) == ratio


@pytest.mark.parametrize(
    ("name", "architecture", "is_short"),
    [
        ("NVIDIA A100-SXM4-80GB", "Ampere", True),
        ("NVIDIA H100 80GB HBM3", "Hopper", True),
        ("Tesla V100-SXM2-32GB", "Volta", True),
        ("Tesla T4", "Turing", False),  # the window is the whole update
        ("NVIDIA H200", "Hopper", False),  # not metered
    ],
)
def test_short_window_is_known_only_of_metered_models(name, architecture, is_short):
    assert has_short_window(name, architecture) is is_short
