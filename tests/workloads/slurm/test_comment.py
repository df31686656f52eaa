import math
from dataclasses import replace

import pytest

from wattline.contract.run import Component, Emissions, Run, RunDevice
from wattline.figures import Figure, unknown
from wattline_workloads.slurm.comment import EnergyComment, sum_of_nodes, unknown_attempts

HALF_J = 3.0


def energy(joules: float | None, half_j: float | None = HALF_J) -> Figure:
    return unknown("the counter failed") if joules is None else Figure(joules, half_j)


def run(*devices: RunDevice, emissions: tuple[Emissions, ...] | None = None) -> Run:
    """An ended run with 1 g CO2eq per kJ of each component, unless `emissions` are given."""
    joules: dict[str, float] = {}
    for device in devices:
        joules.setdefault(device.component, 0.0)
        joules[device.component] += device.energy_j.value or 0.0
    if emissions is None:
        emissions = tuple(
            Emissions(component, "average", "actual", whole_j / 1_000)
            for component, whole_j in joules.items()
        )
    return Run(
        run_id="slurm-c-1",
        workload="slurm",
        state="ended",
        outcome="ok",
        started_at=1.0e9,
        ended_at=1.0e9 + 20,
        duration_s=20.0,
        devices=devices,
        emissions=emissions,
    )


def device(
    name: str,
    joules: float | None,
    component: Component = "gpu",
    attributed_j: float | None = None,
    half_j: float | None = HALF_J,
) -> RunDevice:
    return RunDevice(component, name, energy(joules, half_j), attributed_j)


def test_energy_of_nodes_adds_up_with_half_widths() -> None:
    """Four devices of ± 3 J: ± 12 J."""
    found = sum_of_nodes(
        [run(device("a", 100.0), device("b", 200.0)), run(device("c", 50.0), device("d", 50.0))],
        nodes=2,
    )
    assert found.energy_j == Figure(400.0, 12.0)
    assert (found.known_nodes, found.nodes) == (2, 2)
    assert found.emissions_g == pytest.approx(0.4)
    assert found.text == (
        "wattline: energy_joules=400.0 uncertainty_joules=12.0 emissions_gco2eq=0.4 nodes=2/2"
    )


def test_energy_of_one_node_is_that_of_the_report_and_the_client() -> None:
    """Two GPUs of ± 10 J are ± 20 J everywhere."""
    ended = run(device("GPU-a", 1_000.0, half_j=10.0), device("GPU-b", 1_000.0, half_j=10.0))

    energy_j = sum_of_nodes([ended], nodes=1).energy_j

    assert energy_j == Figure(2_000.0, 20.0)
    assert energy_j == ended.energy() == ended.energy("gpu")


def test_shared_device_counts_its_share_with_its_emissions() -> None:
    """All 100 J of the GPU, and 250 of 1,000 J of the CPU with the half-width of all of it."""
    shared = run(device("a", 100.0), device("0", 1_000.0, "cpu", attributed_j=250.0))

    found = sum_of_nodes([shared], nodes=1)

    assert found.energy_j == Figure(350.0, 6.0)
    assert found.emissions_g == pytest.approx(0.1 + 0.25)


def test_share_that_the_exporter_states_counts_as_it_is() -> None:
    """The exporter decides which devices are shared."""
    found = sum_of_nodes([run(device("a", 1_000.0, attributed_j=901.0))], nodes=1)
    assert found.energy_j == Figure(901.0, 3.0)


def test_emissions_are_missing_unless_all_nodes_have_them() -> None:
    found = sum_of_nodes([run(device("a", 100.0)), run(device("b", 100.0), emissions=())], nodes=3)
    assert found.text == "wattline: energy_joules=200.0 uncertainty_joules=6.0 nodes=2/3"


def test_average_intensity_precedes_marginal() -> None:
    both = tuple(
        Emissions("gpu", basis, "actual", grams)
        for basis, grams in (("marginal", 9.0), ("average", 2.0))
    )
    assert sum_of_nodes([run(device("a", 1.0), emissions=both)], nodes=1).emissions_g == 2.0


def test_run_without_devices_is_unknown() -> None:
    found = sum_of_nodes([run()], nodes=1)
    assert found.energy_j.state == "unknown"
    assert (found.known_nodes, found.nodes) == (0, 1)


def test_node_with_an_unknown_device_makes_a_lower_limit() -> None:
    """100 J of the first node's two GPUs are known, and 50 J of the second node."""
    found = sum_of_nodes(
        [run(device("a", 100.0), device("b", None)), run(device("c", 50.0))], nodes=2
    )
    assert (found.energy_j.value, found.energy_j.state) == (150.0, "partial")
    assert found.energy_j.half_width == 6.0
    assert found.energy_j.rest == (0.0, math.inf)
    assert found.text == (
        "wattline: energy_joules=150.0 uncertainty_joules=6.0 emissions_gco2eq=0.15 nodes=1/2"
    )


def test_node_without_known_energy_adds_nothing() -> None:
    found = sum_of_nodes([run(device("a", None)), run(device("b", 50.0))], nodes=2)
    assert (found.energy_j.value, found.energy_j.state) == (50.0, "partial")
    assert (found.known_nodes, found.nodes) == (1, 2)


def test_attempts_add_up_over_the_comment() -> None:
    first = sum_of_nodes([run(device("a", 100.0))], nodes=1)
    second = sum_of_nodes([run(device("b", 40.0))], nodes=1)
    parsed = EnergyComment.parse(first.text)
    assert parsed == first

    total = second.after(parsed, attempts=2)

    assert total.text == (
        "wattline: energy_joules=140.0 uncertainty_joules=4.2 emissions_gco2eq=0.14 nodes=1/1 "
        "attempts=2"
    )
    again = EnergyComment.parse(total.text)
    assert again
    assert again.attempts == 2


def test_unknown_attempt_makes_the_sum_a_lower_limit() -> None:
    first = EnergyComment(Figure(100.0, 3.0), 0.1, 1, 1)

    total = unknown_attempts(nodes=1).after(first, attempts=2)

    assert (total.energy_j.value, total.energy_j.half_width) == (100.0, 3.0)
    assert total.energy_j.state == "partial"
    assert total.text == (
        "wattline: energy_joules=100.0 uncertainty_joules=3.0 emissions_gco2eq=0.1 nodes=0/1 "
        "attempts=2"
    )


def test_lower_limit_stays_one_in_later_attempts() -> None:
    earlier = EnergyComment.parse(
        "wattline: energy_joules=100.0 uncertainty_joules=3.0 nodes=1/2 attempts=2"
    )
    assert earlier

    total = EnergyComment(Figure(40.0, 4.0), None, 2, 2).after(earlier, attempts=3)

    assert total.energy_j.state == "partial"
    assert total.text == (
        "wattline: energy_joules=140.0 uncertainty_joules=5.0 nodes=1/2 attempts=3"
    )


def test_attempt_without_a_comment_is_unknown() -> None:
    """Attempts 2 and 3 of four have no comment."""
    last = EnergyComment(Figure(40.0, 4.0), None, 2, 2)
    total = last.after(EnergyComment(Figure(100.0, 3.0), None, 1, 1), attempts=4)
    assert (total.energy_j.value, total.energy_j.state) == (140.0, "partial")
    assert total.text.endswith("uncertainty_joules=5.0 nodes=0/2 attempts=4")


def test_unknown_half_width_is_left_out_of_the_comment() -> None:
    found = sum_of_nodes([run(device("a", 100.0, half_j=None))], nodes=1)
    assert found.text == "wattline: energy_joules=100.0 emissions_gco2eq=0.1 nodes=1/1"
    assert EnergyComment.parse(found.text) == found


@pytest.mark.parametrize(
    "comment",
    [
        "",
        "JS1:H4sIAAAA",
        "wattline:",
        "wattline: energy_joules=x",
        "wattline: energy_joules=x nodes=1/1",
        "energy_joules=1 nodes=1/1",
    ],
)
def test_comment_of_another_program_is_no_energy(comment: str) -> None:
    assert EnergyComment.parse(comment) is None


VALID = {
    "energy_joules": "100.0",
    "uncertainty_joules": "1.0",
    "emissions_gco2eq": "0.1",
    "nodes": "1/1",
    "attempts": "2",
}


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *(
            (field, value)
            for field in ("energy_joules", "uncertainty_joules", "emissions_gco2eq")
            for value in ("1e999", "-1.0", "nan", "inf", "1.0.0")
        ),
        *(("nodes", value) for value in ("2/1", "-1/1", "0/0", "1", "1/1/1", "1.0/1")),
        *(("attempts", value) for value in ("0", "-1", "1.5", "1e999")),
    ],
)
def test_comment_with_an_invalid_value_is_no_energy(field: str, value: str) -> None:
    fields = {**VALID, field: value}
    valid, invalid = (
        "wattline: " + " ".join(f"{name}={text}" for name, text in each.items())
        for each in (VALID, fields)
    )
    assert EnergyComment.parse(valid) == EnergyComment(Figure(100.0, 1.0), 0.1, 1, 1, 2)
    assert EnergyComment.parse(invalid) is None


def test_comment_with_a_negative_energy_is_refused() -> None:
    found = EnergyComment(Figure(1.0), None, 1, 1)
    with pytest.raises(ValueError, match="negative"):
        replace(found, energy_j=Figure(-1.0))
