"""GPU models that can be simulated."""

from __future__ import annotations

import pytest

from wattline_exporter.simulation import (
    PRODUCTS,
    Fault,
    make_gpus,
    parse_spec,
)


def test_spec_valid_text_gives_count_and_model():
    assert parse_spec("8xH200") == (8, PRODUCTS["H200"])
    assert parse_spec("a100") == (1, PRODUCTS["A100"])


@pytest.mark.parametrize("spec", ["8xB9000", "0xH200", "65xH200", "H200x8", ""])
def test_spec_invalid_text_is_refused_with_known_models(spec):
    with pytest.raises(
        ValueError, match=r"unknown model or number; use 1 to 64 of H200, H100, A100, RTX4090"
    ):
        parse_spec(spec)


def test_products_are_named_simulated_and_gpus_differ():
    gpus = make_gpus(64, PRODUCTS["H100"])

    assert all("SIMULATED" in product.name for product in PRODUCTS.values())
    assert len({gpu.uuid for gpu in gpus}) == len({gpu.pci_bus_id for gpu in gpus}) == 64
    assert len({round(gpu.sensor_phase_s, 6) for gpu in gpus[:8]}) == 8
    assert gpus == make_gpus(64, PRODUCTS["H100"])
    assert not {gpu.uuid for gpu in gpus} & {
        gpu.uuid for gpu in make_gpus(64, PRODUCTS["H100"], node="b")
    }


def test_products_only_ga100_lacks_averaged_power():
    faults = {name: make_gpus(1, product)[0].faults for name, product in PRODUCTS.items()}

    assert faults == {
        "H200": Fault.NONE,
        "H100": Fault.NONE,
        "A100": Fault.NO_AVERAGE,
        "RTX4090": Fault.NONE,
    }
