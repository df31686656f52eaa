import pytest

from wattline.contract.run import Run, RunDevice
from wattline.figures import Figure
from wattline_workloads.slurm.energy import JobEnergy, sum_runs


def run(gpu_j: dict[str, float], cpu_j: dict[str, float] | None = None, **fields):
    energies = {"gpu": gpu_j, **({"cpu": cpu_j} if cpu_j else {})}
    halves = {component: dict.fromkeys(devices, 3.0) for component, devices in energies.items()}
    grams = [
        {
            "component": component,
            "basis": "average",
            "quality": "actual",
            "grams": sum(devices.values()) / 1000,
        }
        for component, devices in energies.items()
    ]
    return {
        "energy_joules": energies,
        "energy_uncertainty_joules": halves,
        "emissions_grams": grams,
        "attributed_energy_joules": {},
        "duration_seconds": 20.0,
        **fields,
    }


def test_energy_of_nodes_adds_up_with_squared_half_widths() -> None:
    energy = sum_runs([run({"a": 100.0, "b": 200.0}), run({"c": 50.0, "d": 50.0})], nodes=2)
    assert energy.energy_j == Figure(400.0, 6.0)
    assert (energy.measured, energy.nodes) == (2, 2)
    assert energy.grams == pytest.approx(0.4)
    assert energy.comment == (
        "wattline: energy_joules=400.0 uncertainty_joules=6.0 emissions_gco2eq=0.4 nodes=2/2"
    )


def test_energy_of_one_node_is_that_of_the_report_and_the_client() -> None:
    """Two GPUs of ± 10 J are ± √200 J everywhere."""
    gpus = [RunDevice("gpu", uuid, Figure(1_000.0, 10.0)) for uuid in ("GPU-a", "GPU-b")]
    ended = Run(
        run_id="slurm-c-1",
        workload="train",
        state="ended",
        outcome="ok",
        started_at=1.0e9,
        ended_at=1.0e9 + 20,
        duration_s=20.0,
        devices=tuple(gpus),
    )

    energy_j = sum_runs([ended.to_json()], nodes=1).energy_j
    assert energy_j == Figure(2_000.0, pytest.approx(14.1421356))
    assert energy_j == ended.energy() == ended.energy("gpu")


def test_share_of_a_device_that_others_use_counts_with_its_emissions() -> None:
    shared = run({"a": 100.0}, {"0": 1000.0}, attributed_energy_joules={"cpu": {"0": 250.0}})
    energy = sum_runs([shared], nodes=1)
    assert energy.energy_j.value == 350.0
    assert energy.grams == pytest.approx(0.1 + 0.25)


def test_share_that_only_the_edges_of_a_run_lack_is_the_whole_device() -> None:
    """Two of twenty seconds are 100 of 1,000 J."""
    energies = [
        sum_runs(
            [run({"a": 1000.0}, attributed_energy_joules={"gpu": {"a": joules}})], nodes=1
        ).energy_j.value
        for joules in (901.0, 899.0)
    ]
    assert energies == [1000.0, 899.0]


def test_emissions_are_missing_unless_all_nodes_have_them() -> None:
    energy = sum_runs([run({"a": 100.0}), run({"b": 100.0}, emissions_grams=[])], nodes=3)
    assert energy.comment == "wattline: energy_joules=200.0 uncertainty_joules=4.2 nodes=2/3"


def test_average_intensity_precedes_marginal() -> None:
    both = [
        {"component": "gpu", "basis": basis, "quality": "actual", "grams": grams}
        for basis, grams in (("marginal", 9.0), ("average", 2.0))
    ]
    assert sum_runs([run({"a": 1.0}, emissions_grams=both)], nodes=1).grams == 2.0


def test_run_without_devices_is_not_measured() -> None:
    assert sum_runs([run({}, energy_joules={})], nodes=1).measured == 0


def test_attempts_add_up_over_the_comment() -> None:
    first, second = sum_runs([run({"a": 100.0})], nodes=1), sum_runs([run({"b": 40.0})], nodes=1)
    parsed = JobEnergy.parse(first.comment)
    assert parsed == first
    total = second.after(parsed)
    assert total.comment == (
        "wattline: energy_joules=140.0 uncertainty_joules=4.2 emissions_gco2eq=0.14 nodes=1/1 "
        "attempts=2"
    )
    again = JobEnergy.parse(total.comment)
    assert again
    assert again.attempts == 2


def test_unknown_half_width_is_left_out_of_the_comment() -> None:
    energy = sum_runs([run({"a": 100.0}, energy_uncertainty_joules={})], nodes=1)
    assert energy.comment == "wattline: energy_joules=100.0 emissions_gco2eq=0.1 nodes=1/1"
    assert JobEnergy.parse(energy.comment) == energy


@pytest.mark.parametrize(
    "comment", ["", "JS1:H4sIAAAA", "wattline:", "wattline: energy_joules=x", "energy_joules=1"]
)
def test_comment_of_another_program_is_no_energy(comment: str) -> None:
    assert JobEnergy.parse(comment) is None
