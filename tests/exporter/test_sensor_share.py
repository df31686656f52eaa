"""Which cards' instant power sees all of the time, by what their driver calls them."""

import pytest

from exporter.energy.plausibility import sensor_share


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
        ("a card of next year", "", 0.25),
    ],
)
def test_a_sensor_sees_what_was_metered_of_its_architecture_and_else_the_least(name, architecture, ratio):
    assert sensor_share(name, architecture) == ratio
