"""Record of a run: its JSON, its sums and its energy per unit of work."""

import json
import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wattline.contract.api import RunGpu
from wattline.contract.run import (
    COMPONENTS,
    Emissions,
    Run,
    RunDevice,
    RunFormatError,
    RunPart,
    RunPhase,
    UnitEnergy,
    combine,
    runs_of_nodes,
)
from wattline.figures import Figure, unknown

GPU_0 = RunDevice(
    "gpu",
    "GPU-0",
    Figure(600.0, 1.5, bias=(-18.0, 60.0), covered_ratio=0.75),
    attributed_j=450.0,
    before_use_j=12.5,
    integrated_j=590.0,
)
GPU_1 = RunDevice("gpu", "GPU-1", Figure(400.0, 1.0), integrated_j=410.0)
CPU = RunDevice("cpu", "0", Figure(50.0, 0.25))
RUN = Run(
    run_id="r-1",
    workload="train",
    state="ended",
    started_at=1.8e9,
    duration_s=2.0,
    outcome="ok",
    ended_at=1.8e9 + 2,
    labels={"model": "gpt2"},
    gpus=(RunGpu("0", "GPU-0", "NVIDIA H100", "Hopper"), RunGpu("1", "GPU-1", "NVIDIA H100")),
    devices=(GPU_0, GPU_1, CPU),
    phases=(
        RunPhase(
            "measure",
            1.8e9,
            1.5,
            {"gpu": Figure(700.0, 3.0), "cpu": Figure(40.0, 0.5)},
            {"steps": 30.0},
            1.8e9 + 0.25,
        ),
    ),
    work={"steps": 30.0},
    work_unit="steps",
    work_reported_at=1.8e9 + 1.5,
    results={"loss": 0.5},
    emissions=(
        Emissions("gpu", "average", "actual", 0.2),
        Emissions("cpu", "average", "actual", 1),
    ),
    power_max_w={"GPU-0": 350.0},
    notes=("a note",),
    simulation="/run/gpus.json",
)
JSON = {
    "run_id": "r-1",
    "workload": "train",
    "labels": {"model": "gpt2"},
    "gpus": [
        {"gpu": "0", "uuid": "GPU-0", "name": "NVIDIA H100", "architecture": "Hopper"},
        {"gpu": "1", "uuid": "GPU-1", "name": "NVIDIA H100", "architecture": ""},
    ],
    "state": "ended",
    "outcome": "ok",
    "started_at": 1.8e9,
    "ended_at": 1.8e9 + 2,
    "duration_seconds": 2.0,
    "phases": [
        {
            "name": "measure",
            "started_at": 1.8e9,
            "duration_seconds": 1.5,
            "energy_joules": {"gpu": 700.0, "cpu": 40.0},
            "energy_uncertainty_joules": {"gpu": 3.0, "cpu": 0.5},
            "work": {"steps": 30.0},
            "last_started_at": 1.8e9 + 0.25,
        }
    ],
    "work": {"steps": 30.0},
    "work_unit": "steps",
    "work_reported_at": 1.8e9 + 1.5,
    "results": {"loss": 0.5},
    "settled_until": None,
    "energy_joules": {"gpu": {"GPU-0": 600.0, "GPU-1": 400.0}, "cpu": {"0": 50.0}},
    "energy_uncertainty_joules": {"gpu": {"GPU-0": 1.5, "GPU-1": 1.0}, "cpu": {"0": 0.25}},
    "energy_sensor_limits_joules": {"gpu": {"GPU-0": [-18.0, 60.0]}},
    "integrated_energy_joules": {"GPU-0": 590.0, "GPU-1": 410.0},
    "power_max_watts": {"GPU-0": 350.0},
    "emissions_grams": [
        {"component": "gpu", "basis": "average", "quality": "actual", "grams": 0.2},
        {"component": "cpu", "basis": "average", "quality": "actual", "grams": 1},
    ],
    "covered_ratio": {"gpu": {"GPU-0": 0.75, "GPU-1": 1.0}, "cpu": {"0": 1.0}},
    "notes": ["a note"],
    "attributed_energy_joules": {"gpu": {"GPU-0": 450.0}},
    "energy_before_use_joules": {"gpu": {"GPU-0": 12.5}},
    "energy_per_unit": [
        {  # 450 J + 400 J over 30 steps; 1,000 J of the whole GPUs
            "unit": "steps",
            "name": "step",
            "component": "gpu",
            "joules": 850.0 / 30,
            "uncertainty_joules": None,  # a share has no half-width
            "phases": [],
            "whole_device_joules": 1_000.0 / 30,
            "whole_device_uncertainty_joules": pytest.approx(2.5 / 30),
        }
    ],
    "simulation": "/run/gpus.json",
}


def test_run_json_has_the_counters_of_the_shares():
    run = replace(RUN, devices=(replace(GPU_0, shares_j={"idle_shared": 70.25}),))

    document = run.to_json()

    assert document["attributed_counter_joules"] == {"gpu": {"GPU-0": 70.25}}
    assert Run.parse(json.loads(json.dumps(document))) == run


def test_run_json_has_all_fields_by_component_and_device():
    assert RUN.to_json() == JSON
    assert list(RUN.to_json()) == list(JSON)


def test_run_parse_of_its_json_is_the_same_run():
    assert Run.parse(json.loads(json.dumps(RUN.to_json()))) == RUN


def test_run_unknown_energy_is_null_with_state_and_reason():
    gone = replace(GPU_1, energy_j=unknown("no sensor"), integrated_j=None)
    run = replace(RUN, devices=(GPU_0, gone, CPU))

    document = run.to_json()

    assert document["energy_joules"]["gpu"] == {"GPU-0": 600.0, "GPU-1": None}
    assert document["energy_uncertainty_joules"]["gpu"] == {"GPU-0": 1.5}
    assert document["energy_state"] == {"gpu": {"GPU-1": "unknown"}}
    assert document["energy_reason"] == {"gpu": {"GPU-1": "no sensor"}}
    assert document["energy_per_unit"] == []
    assert Run.parse(document) == run


def test_run_partial_energy_has_value_limits_and_reason():
    blind = replace(GPU_1, energy_j=Figure(400.0, 1.0, rest=(0.0, 700.0), reason="1 s missing"))
    run = replace(RUN, devices=(GPU_0, blind, CPU))

    document = run.to_json()

    assert document["energy_joules"]["gpu"]["GPU-1"] == 400.0
    assert document["energy_rest_limits_joules"] == {"gpu": {"GPU-1": [0.0, 700.0]}}
    assert document["energy_state"] == {"gpu": {"GPU-1": "partial"}}
    assert Run.parse(document) == run


FLOATS = st.floats(0, 1e9)
KNOWN = st.builds(
    Figure,
    FLOATS,
    st.none() | FLOATS,
    bias=st.none() | st.tuples(st.floats(-1e9, 0), FLOATS),
    covered_ratio=st.floats(0, 1),
)
PARTIAL = st.builds(
    Figure,
    FLOATS,
    FLOATS,
    rest=st.just((0.0, math.inf)) | st.tuples(st.just(0.0), FLOATS),
    reason=st.text(min_size=1),
)
DEVICES = st.builds(
    RunDevice,
    st.sampled_from(COMPONENTS),
    st.text(),
    KNOWN | PARTIAL | st.builds(unknown, st.text(min_size=1)),
    attributed_j=st.none() | FLOATS,
    before_use_j=FLOATS,
)
PHASE_FIGURES = st.builds(Figure, FLOATS, st.none() | FLOATS)
PHASES = st.builds(
    RunPhase,
    st.text(),
    FLOATS,
    FLOATS,
    st.dictionaries(st.sampled_from(COMPONENTS), PHASE_FIGURES),
    st.dictionaries(st.text(), FLOATS),
    st.none() | FLOATS,
)


@given(
    st.lists(DEVICES, unique_by=lambda device: (device.component, device.device_id)),
    st.lists(PHASES, max_size=3),
)
def test_run_parse_of_any_json_is_the_same_run(devices, phases):
    in_order = sorted(devices, key=lambda device: COMPONENTS.index(device.component))
    run = replace(RUN, state="running", devices=tuple(in_order), phases=tuple(phases))

    assert Run.parse(json.loads(json.dumps(run.to_json()))) == run


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"run_id": 3}, "run_id: expected text"),
        ({"state": "gone"}, "state: expected running or ended"),
        ({"outcome": "good"}, "outcome: expected ok, failed, interrupted, unknown"),
        ({"started_at": None}, "started_at: expected a number"),
        ({"labels": {"a": 1}}, "labels.a: expected text"),
        ({"gpus": [{"gpu": "0", "uuid": "GPU-0"}]}, "gpus.0.name: field required"),
        ({"energy_joules": {"gpu": 3.0}}, "energy_joules.gpu: expected an object"),
        ({"energy_joules": {"npu": {}}}, "energy_joules.npu: expected gpu, cpu, dram"),
        (
            {"energy_joules": {"gpu": {"GPU-0": "3"}}},
            "energy_joules.gpu.GPU-0: not a finite number",
        ),
        (
            {"energy_joules": {"gpu": {"GPU-0": None}}},
            "energy_joules.gpu.GPU-0: an unknown figure has no errors",
        ),
        (
            {"energy_uncertainty_joules": {"gpu": {"GPU-0": math.nan}}},
            "energy_uncertainty_joules.gpu.GPU-0: not a finite number",
        ),
        ({"phases": [{}]}, "phases.0.name: field required"),
        (
            {"phases": [JSON["phases"][0] | {"energy_joules": {"gpu": "1"}}]},
            "phases.0.energy_joules.gpu: not a finite number",
        ),
        (
            {"phases": [JSON["phases"][0] | {"energy_joules": None}]},
            "phases.0.energy_joules: expected an object",
        ),
        (
            {"covered_ratio": {"gpu": {"GPU-0": "1"}}},
            "covered_ratio.gpu.GPU-0: not a finite number",
        ),
        ({"notes": ["a", 1]}, "notes.1: expected text"),
        ({"emissions_grams": [{"component": "gpu"}]}, "emissions_grams.0.basis: field required"),
    ],
)
def test_run_parse_invalid_document_names_the_field(changes, message):
    with pytest.raises(RunFormatError) as caught:
        Run.parse(JSON | changes)

    assert str(caught.value) == message


@pytest.mark.parametrize("missing", ["run_id", "energy_joules", "phases", "work", "notes"])
def test_run_parse_document_without_field_names_it(missing):
    with pytest.raises(RunFormatError, match=f"^{missing}: field required$"):
        Run.parse({name: value for name, value in JSON.items() if name != missing})


def test_unit_energy_json_of_own_gpu_has_its_half_width():
    """400 ± 1 J of a GPU that nothing else used, over 20 steps."""
    run = replace(RUN, devices=(GPU_1,), phases=(), work={"steps": 20.0})

    (each,) = run.to_json()["energy_per_unit"]

    assert (each["joules"], each["uncertainty_joules"]) == pytest.approx((20.0, 0.05))
    assert each["whole_device_uncertainty_joules"] is None


def test_run_energy_adds_half_widths_of_devices():
    """1.5 + 1 J, with the CPU's 0.25 J 2.75 J."""
    run = replace(RUN, devices=(replace(GPU_0, energy_j=Figure(600.0, 1.5)), GPU_1, CPU))

    assert run.energy() == Figure(1_050.0, 2.75)
    assert run.energy("gpu") == Figure(1_000.0, 2.5)
    assert run.energy("dram").state == "unknown"


def test_run_energy_with_unknown_device_is_at_least_the_known():
    run = replace(RUN, devices=(GPU_1, replace(GPU_0, energy_j=unknown("no sensor"))))

    energy = run.energy("gpu")

    assert (energy.value, energy.state, energy.rest) == (400.0, "partial", (0.0, math.inf))
    assert energy.reason == "no sensor"
    assert run.known_energy("gpu") == unknown("no sensor")
    assert RUN.known_energy("cpu") == Figure(50.0, 0.25)


@pytest.mark.parametrize(
    ("devices", "share_j"),
    [
        ((GPU_0, GPU_1), 850.0),
        ((GPU_1,), None),
        ((GPU_0, replace(GPU_1, energy_j=unknown("no sensor"))), None),
    ],
)
def test_run_attributed_energy_counts_whole_devices_of_the_run_alone(devices, share_j):
    assert replace(RUN, devices=devices).attributed_j("gpu") == share_j


@pytest.mark.parametrize(
    ("emissions", "grams"),
    [
        (RUN.emissions, 1.2),
        (RUN.emissions[:1], None),  # the sum would lack the CPU
        (
            (
                Emissions("gpu", "marginal", "actual", 2.0),
                Emissions("cpu", "marginal", "static", 1),
            ),
            3.0,
        ),
        ((*RUN.emissions, Emissions("dram", "average", "actual", 5.0)), 1.2),
    ],
)
def test_run_emissions_are_the_sum_over_its_components(emissions, grams):
    assert replace(RUN, emissions=emissions).emissions_g.value == grams


def test_run_emissions_have_the_random_errors_of_the_energy():
    """GPUs: 1.5 + 1 of 1,000 J, of 0.2 g. CPU: 0.25 of 50 J, of 1 g: 5 mg. Without limits by
    the sensor of GPU-0.
    """
    found = RUN.emissions_g

    assert found.half_width == pytest.approx(0.5e-3 + 5e-3)
    assert found.bias is None


def test_run_emissions_with_unknown_half_width_of_a_device_have_none():
    unsure = replace(GPU_1, energy_j=Figure(400.0))

    assert replace(RUN, devices=(GPU_0, unsure, CPU)).emissions_g.half_width is None


def test_emissions_with_unknown_energy_of_a_device_are_partial_or_unknown():
    lost = replace(CPU, energy_j=unknown("the counter failed"))

    partial = replace(RUN, devices=(GPU_0, GPU_1, lost)).emissions_g
    assert (partial.state, partial.value, partial.reason) == ("partial", 0.2, "the counter failed")
    cpu_only = replace(RUN, devices=(lost,)).emissions_g
    assert cpu_only == unknown("the counter failed")


def test_run_emissions_without_energy_are_zero_without_half_width():
    idle = replace(RUN, devices=(RunDevice("cpu", "0", Figure(0.0, 0.1)),))

    assert replace(idle, emissions=(Emissions("cpu", "average", "static", 0.0),)).emissions_g == (
        Figure(0.0)
    )


def test_run_own_energy_and_emissions_have_its_share_of_a_shared_device():
    """GPU-0: 450 of 600 J, so 0.75 of the sensor's limits, and the half-width of the whole device.

    Both GPUs: 850 of 1,000 J, so 0.85 of 0.2 g. The CPU is the run's alone: 1 g.
    """
    assert GPU_0.own_energy_j == Figure(450.0, 1.5, bias=(-13.5, 45.0), covered_ratio=0.75)
    assert (GPU_1.own_energy_j, CPU.own_energy_j) == (GPU_1.energy_j, CPU.energy_j)
    gpus = RUN.own_energy("gpu")
    assert (gpus.value, gpus.half_width) == (850.0, 2.5)
    own_g = RUN.own_emissions_g
    assert own_g.value == pytest.approx(1.17)
    assert own_g.half_width == pytest.approx(0.2e-3 * 2.5 + 5e-3)


def test_run_own_energy_of_device_with_unknown_energy_is_unknown():
    lost = replace(GPU_0, energy_j=unknown("the counter failed"))
    assert replace(RUN, devices=(lost,)).own_energy() == unknown("the counter failed")


INTENSITY_MISSING = "no carbon intensity was known for a part of the energy"


def test_emissions_with_intensity_for_a_part_are_a_lower_limit():
    """0.2 g of 1,000 J, of which 250 J had no intensity."""
    emissions = (
        Emissions("gpu", "average", "actual", 0.15, 0.75),
        Emissions("gpu", "average", "forecast", 0.05, 0.75),
    )
    run = replace(RUN, devices=(GPU_0, GPU_1), emissions=emissions)

    found = run.emissions_g
    assert (found.state, found.value, found.covered_ratio) == ("partial", 0.2, 0.75)
    assert (found.rest, found.reason) == ((0.0, math.inf), INTENSITY_MISSING)
    assert found.half_width == pytest.approx(0.2e-3 * 2.5)
    assert Run.parse(run.to_json()).emissions == emissions


def test_combined_emissions_are_covered_as_the_energy_of_the_nodes():
    """600 J with an intensity for a half, and 400 J with one for all of it: 700 of 1,000 J."""
    first = replace(
        RUN,
        devices=(RunDevice("gpu", "GPU-0", Figure(600.0, 1.0)),),
        emissions=(Emissions("gpu", "average", "actual", 0.1, 0.5),),
    )
    second = replace(
        RUN,
        devices=(RunDevice("gpu", "GPU-1", Figure(400.0, 1.0)),),
        emissions=(Emissions("gpu", "average", "actual", 0.3),),
    )

    (both,) = combine([first, second]).emissions
    assert (both.grams, both.covered_ratio) == (pytest.approx(0.4), pytest.approx(0.7))


def test_run_own_part_with_skewed_interval_has_its_larger_side():
    skewed = replace(GPU_0, energy_j=Figure(600.0, skewed=(590.0, 604.0)))
    assert skewed.own_energy_j == Figure(450.0, 10.0)


def alone(**changes):
    """Return a run of 30 steps and 600 J on a GPU that nothing else used."""
    gpu = RunDevice("gpu", "GPU-0", Figure(600.0, 1.0))
    return replace(RUN, **{"devices": (gpu, CPU), **changes})


def test_energy_per_unit_in_phases_counts_their_energy_only():
    """All 30 steps in 1.5 of 2 s with 300 J: 10 J a step."""
    phase = RunPhase("measure", 0.0, 1.5, {"gpu": Figure(300.0)}, {"steps": 30.0})

    assert alone(phases=(phase,)).energy_per_unit() == (
        UnitEnergy("steps", "step", "gpu", Figure(10.0), ("measure",)),
    )


@pytest.mark.parametrize(
    "phase",
    [
        RunPhase("measure", 0.0, 0.9, {"gpu": Figure(300.0)}, {"steps": 30.0}),  # too short
        RunPhase("measure", 0.0, 1.5, {}, {"steps": 30.0}),  # no energy
        RunPhase("measure", 0.0, 1.5, {"gpu": unknown("no sensor")}, {"steps": 30.0}),
        RunPhase("measure", 0.0, 1.5, {"gpu": Figure(300.0)}, {"steps": 20.0}),  # 10 elsewhere
    ],
)
def test_energy_per_unit_without_energy_of_its_phases_is_of_the_run(phase):
    assert alone(phases=(phase,)).energy_per_unit() == (
        UnitEnergy("steps", "step", "gpu", Figure(20.0, pytest.approx(1 / 30))),
    )


def test_unit_energy_in_phases_adds_their_half_widths():
    """(3 + 4) J of one sensor over 30 steps; the limits of its accuracy as in the whole run: of
    600 J, -6 and +12 J, so of 300 J, -3 and +6 J.
    """
    gpu = RunDevice("gpu", "GPU-0", Figure(600.0, 1.0, bias=(-6.0, 12.0)))
    phases = (
        RunPhase("a", 0.0, 1.0, {"gpu": Figure(100.0, 3.0)}, {"steps": 10.0}),
        RunPhase("rest", 0.0, 2.0, {"gpu": Figure(300.0, 9.0)}),
        RunPhase("b", 0.0, 1.0, {"gpu": Figure(200.0, 4.0)}, {"steps": 20.0}),
    )
    run = replace(RUN, devices=(gpu,), duration_s=4.0, phases=phases)

    assert run.unit_energy("steps") == UnitEnergy(
        "steps",
        "step",
        "gpu",
        Figure(
            pytest.approx(10.0),
            pytest.approx(7 / 30),
            bias=(pytest.approx(-0.1), pytest.approx(0.2)),
        ),
        ("a", "b"),
    )


def test_unit_energy_of_a_share_has_only_whole_devices_half_width():
    """450 of 600 J and its limits of -18 and +60 J over 30 steps; 1.5 + 1 J of both GPUs."""
    one = replace(RUN, devices=(GPU_0,)).unit_energy("steps")
    both = RUN.unit_energy("steps")

    assert one.energy == Figure(15.0, bias=(pytest.approx(-0.45), pytest.approx(1.5)))
    assert both.energy.half_width is None
    assert both.whole_device.half_width == pytest.approx(2.5 / 30)


def test_unit_energy_of_a_share_is_at_most_that_of_the_whole_device():
    gpu = replace(GPU_0, attributed_j=601.0)

    assert replace(RUN, devices=(gpu,)).unit_energy("steps").energy.value == 20.0


def test_unit_energy_of_an_open_run_is_of_the_whole_run_so_far():
    phase = RunPhase("measure", 0.0, 1.5, {"gpu": Figure(300.0)}, {"steps": 30.0})

    assert alone(state="running", phases=(phase,)).unit_energy("steps") == UnitEnergy(
        "steps", "step", "gpu", Figure(20.0, pytest.approx(1 / 30))
    )


def test_unit_energy_of_an_accompanying_unit_is_known():
    run = alone(phases=(), work={"requests_failed": 3.0})

    assert run.unit_energy("requests_failed").energy.value == pytest.approx(200.0)
    assert run.unit_energy("images") is None


@pytest.mark.parametrize(("shortest_s", "names"), [(0.5, ("measure",)), (1.0, ())])
def test_phases_of_unit_are_as_long_as_the_sensor_needs(shortest_s, names):
    phase = RunPhase("measure", 0.0, 0.9, {"gpu": Figure(300.0)}, {"steps": 30.0})

    assert alone(phases=(phase,)).phases_of_unit("steps", shortest_phase_s=shortest_s) == names


def test_phases_of_unit_without_devices_need_no_energy():
    phase = RunPhase("measure", 0.0, 0.9, {}, {"steps": 30.0})

    assert alone(devices=(), phases=(phase,)).phases_of_unit("steps") == ("measure",)


def test_run_amounts_have_no_scores_and_no_unit_that_was_declared_only():
    run = replace(RUN, work={"images": 3.0, "score": 0.5, "steps": 0.0}, work_unit="steps")

    assert list(run.amounts.items()) == [("images", 3.0)]
    assert run.misreported_work == {"score": 0.5}
    assert list(replace(run, work={"images": 3.0, "steps": 1.0}).amounts) == ["steps", "images"]


def test_energy_per_unit_of_tiny_amount_is_left_out():
    """600 J / 1e-310 is no finite number, which JSON cannot have."""
    run = alone(phases=(), work={"steps": 30.0, "images": 1e-310})

    assert [one.unit for one in run.energy_per_unit()] == ["steps"]


def test_energy_per_unit_has_declared_unit_first_and_no_results():
    work = {"steps": 30.0, "requests": 3.0, "seconds": 2.0, "requests_failed": 1.0, "images": 0.0}
    found = alone(phases=(), work=work).energy_per_unit()

    assert [(one.unit, one.energy.number) for one in found] == [
        ("steps", 20.0),
        ("requests", 200.0),
    ]


def test_energy_per_unit_without_gpu_is_of_the_cpus():
    (found,) = replace(RUN, devices=(CPU,), phases=()).energy_per_unit()

    assert (found.component, found.energy) == (
        "cpu",
        Figure(pytest.approx(50 / 30), pytest.approx(0.25 / 30)),
    )


def test_energy_per_unit_of_running_run_is_not_known_yet():
    assert replace(RUN, state="running").energy_per_unit() == ()


# A run on several nodes

NODE_A = replace(
    RUN,
    labels={"rank": "0", "model": "gpt2"},
    devices=(RunDevice("gpu", "GPU-0", Figure(600.0, 3.0), node="a"),),
    gpus=RUN.gpus[:1],
    notes=("a note",),
)
NODE_B = replace(
    RUN,
    started_at=1.8e9 + 1,
    duration_s=4.0,
    ended_at=1.8e9 + 5,
    outcome="failed",
    gpus=(RunGpu("0", "GPU-9", "NVIDIA H100", "Hopper"),),
    devices=(
        RunDevice("gpu", "GPU-9", Figure(400.0, 4.0), node="b"),
        RunDevice("cpu", "0", Figure(50.0, 0.25), node="b"),
    ),
    phases=(
        RunPhase("load", 1.8e9 + 1, 0.5, {"gpu": Figure(100.0)}),
        RunPhase("measure", 1.8e9 + 2, 2.5, {"gpu": Figure(300.0, 4.0)}, {"steps": 10.0}),
    ),
    work={"steps": 10.0, "images": 5.0},
    work_reported_at=1.8e9 + 4,
    results={"accuracy": 0.75},
    emissions=(
        Emissions("gpu", "average", "actual", 0.5),
        Emissions("gpu", "average", "forecast", 0.125),
    ),
    power_max_w={"GPU-9": 300.0},
    notes=("a note", "another note"),
)


def test_combine_one_part_is_the_run_itself():
    assert combine([NODE_A]) is NODE_A


def test_combine_without_parts_is_refused():
    with pytest.raises(ValueError, match="at least one part"):
        combine([])


def test_combine_adds_energy_work_and_emissions():
    """3 + 4 J = 7 J; 30 + 10 steps; 0.2 + 0.5 g of one kind."""
    run = combine([NODE_A, NODE_B])

    assert run.energy("gpu") == Figure(1_000.0, 7.0)
    assert run.energy("cpu") == Figure(50.0, 0.25)
    assert [device.node for device in run.devices] == ["a", "b", "b"]
    assert [gpu.uuid for gpu in run.gpus] == ["GPU-0", "GPU-9"]
    assert run.power_max_w == {"GPU-0": 350.0, "GPU-9": 300.0}
    assert run.work == {"steps": 40.0, "images": 5.0}
    assert run.emissions == (
        Emissions("gpu", "average", "actual", 0.7),
        Emissions("gpu", "average", "forecast", 0.125),
    )


def test_combine_has_first_start_last_end_and_longest_duration():
    """Node a measured 2 s, node b 4 s."""
    run = combine([NODE_A, NODE_B])

    assert (run.started_at, run.ended_at, run.duration_s) == (1.8e9, 1.8e9 + 5, 4.0)
    assert (run.state, run.outcome) == ("ended", "failed")
    assert run.work_reported_at == 1.8e9 + 4


def test_combine_joins_labels_results_and_notes():
    run = combine([NODE_A, NODE_B])

    assert run.labels == {"rank": "0", "model": "gpt2"}
    assert run.results == {"loss": 0.5, "accuracy": 0.75}
    assert run.notes == ("a note", "another note", CPU_LEFT_OUT)


def test_combine_different_results_of_one_name_have_their_nodes():
    """The loss is the same on both nodes, the rate is not."""
    first = replace(NODE_A, results={"loss": 0.5, "tokens_per_second": 500.0})
    second = replace(NODE_B, results={"loss": 0.5, "tokens_per_second": 100.0, "accuracy": 0.75})

    assert combine([first, second]).results == {
        "loss": 0.5,
        "tokens_per_second (a)": 500.0,
        "tokens_per_second (b)": 100.0,
        "accuracy": 0.75,
    }


CPU_LEFT_OUT = (
    "emissions of the CPU by average intensity are left out: not every node has a carbon intensity"
)
"""Only node b has a CPU, and its series lack their emissions."""


def test_combine_emissions_of_one_node_are_not_those_of_the_run():
    """1 kWh on each node, 400 g on the first one: the second one has another basis, or none."""
    marginal = Emissions("gpu", "marginal", "actual", 100.0)
    first = replace(NODE_A, emissions=(Emissions("gpu", "average", "actual", 400.0),), notes=())

    for others in ((), (marginal,)):
        run = combine([first, replace(NODE_B, emissions=others, notes=())])

        assert run.emissions == ()
        assert run.emissions_g.value is None
        assert run.notes[0] == CPU_LEFT_OUT.replace("CPU", "GPU")


def test_combine_phase_has_longest_duration_and_energy_of_all():
    """3 + 4 J = 7 J; node b, which has a CPU, has no energy of it in the phase."""
    run = combine([NODE_A, NODE_B])
    without = "not every node has the energy of phase"

    assert run.phases == (
        RunPhase(
            "measure",
            1.8e9,
            2.5,
            {
                "gpu": Figure(1_000.0, 7.0),
                "cpu": lower_limit(40.0, 0.5, f"{without} measure"),
            },
            {"steps": 40.0},
            1.8e9 + 0.25,
        ),
        RunPhase("load", 1.8e9 + 1, 0.5, {"gpu": lower_limit(100.0, None, f"{without} load")}),
    )


def lower_limit(value, half_width, reason):
    return Figure(value, half_width, rest=(0.0, math.inf), covered_ratio=0.0, reason=reason)


def test_combine_work_in_a_phase_of_one_node_has_the_runs_energy():
    """Node b worked for the 30 steps, too, but only node a has their phase: 1,000 J / 30, not
    700 J / 30. 3 + 4 J = 7 J.
    """
    (each,) = combine([NODE_A, replace(NODE_B, phases=(), work={})]).energy_per_unit()

    assert (each.unit, each.phases) == ("steps", ())
    assert each.energy.number == pytest.approx(1_000 / 30)
    assert each.energy.half_width == pytest.approx(7 / 30)


def test_combine_is_running_until_all_parts_have_ended():
    open_part = replace(
        NODE_A, state="running", ended_at=None, outcome=None, settled_until=1.8e9 + 1
    )

    run = combine([open_part, NODE_B])

    assert (run.state, run.ended_at, run.settled_until) == ("running", None, 1.8e9 + 1)
    assert run.outcome is None  # node b failed


@pytest.mark.parametrize(
    ("units", "primary"),
    [
        (("steps", "images", "images"), "images"),
        (("steps", "images"), "images"),  # the first by name
        (("steps", None), "steps"),
        ((None, None), None),
    ],
)
def test_combine_primary_unit_is_that_of_most_parts(units, primary):
    parts = [replace(NODE_A, work_unit=unit) for unit in units]

    assert combine(parts).work_unit == primary


def part(*uuids, joules=600.0, start_s=0.0, duration_s=2.0, seen_s=(0.0, 10.0), **changes):
    """Return the part of a run with these GPUs, each with 3 J of half-width."""
    run = replace(
        NODE_A,
        started_at=1.8e9 + start_s,
        duration_s=duration_s,
        gpus=tuple(RunGpu("0", uuid, "") for uuid in uuids),
        devices=tuple(RunDevice("gpu", uuid, Figure(joules, 3.0)) for uuid in uuids),
        phases=(),
        emissions=(),
        **changes,
    )
    return RunPart(run, 1.8e9 + seen_s[0], 1.8e9 + seen_s[1])


def test_runs_of_nodes_two_addresses_at_one_time_count_once():
    parts = {"b:1": part("GPU-0"), "a:1": part("GPU-0"), "c:1": part("GPU-9")}

    found = runs_of_nodes(parts)

    assert found.aliases == {"b:1": "a:1"}
    assert found.moved_at == {}
    assert found.runs == {"a:1": parts["a:1"].run, "c:1": parts["c:1"].run}


@pytest.mark.parametrize(("old", "new"), [("a:1", "b:1"), ("z:1", "y:1")])
def test_runs_of_nodes_new_address_has_the_whole_run(old, new):
    """The ledger goes on: 400 J at the old address, 1,000 J at the new one."""
    parts = {
        old: part("GPU-0", joules=400.0, seen_s=(0.0, 400.0), state="running", ended_at=None),
        new: part("GPU-0", joules=1_000.0, seen_s=(430.0, 1_600.0)),
    }

    found = runs_of_nodes(parts)

    assert found.runs == {new: parts[new].run}
    assert found.aliases == {old: new}
    assert found.moved_at == {old: 1.8e9 + 430}


def test_runs_of_nodes_address_that_went_on_longer_counts():
    """Both addresses have samples for 50 s."""
    old = part("GPU-0", seen_s=(0.0, 400.0))
    new = part("GPU-0", joules=1_000.0, seen_s=(350.0, 1_600.0))

    found = runs_of_nodes({"a:1": old, "b:1": new})

    assert found.runs == {"b:1": new.run}
    assert found.moved_at == {}


@pytest.mark.parametrize("old_until_s", [100.0, 700.0])
@pytest.mark.parametrize(("old_address", "new_address"), [("a:1", "b:1"), ("z:1", "y:1")])
def test_runs_of_nodes_ledger_that_began_again_is_added(old_until_s, old_address, new_address):
    """400 J in 100 s, 20 s without a ledger, 500 J in 80 s: at least 900 J in 200 s, of which 180 s
    are known. Half-widths of one sensor add: 3 J + 3 J.
    """
    old = part(
        "GPU-0", joules=400.0, duration_s=100.0, seen_s=(0.0, old_until_s), work={"steps": 4.0}
    )
    new = part(
        "GPU-0",
        joules=500.0,
        start_s=120.0,
        duration_s=80.0,
        seen_s=(120.0, 710.0),
        work={"steps": 5.0},
        ended_at=1.8e9 + 200,
    )

    found = runs_of_nodes({old_address: old, new_address: new})

    ((address, run),) = found.runs.items()
    (device,) = run.devices
    assert device.node == address
    assert (run.started_at, run.ended_at, run.duration_s) == (1.8e9, 1.8e9 + 200, 200.0)
    assert run.work == {"steps": 9.0}
    assert device.energy_j == Figure(
        900.0,
        6.0,
        rest=(0.0, math.inf),
        covered_ratio=0.9,
        reason="the exporter began again without the run, and measured nothing in between",
    )


def test_runs_of_nodes_chain_of_addresses_counts_each_gpu_once():
    whole = part("GPU-1", "GPU-2")

    found = runs_of_nodes({"a:1": part("GPU-1"), "b:1": whole, "c:1": part("GPU-2")})

    assert found.runs == {"b:1": whole.run}
    assert found.aliases == {"a:1": "b:1", "c:1": "b:1"}


def test_runs_of_nodes_other_address_has_the_gpus_that_the_first_lacks():
    """600 ± 3 J of each of three GPUs: ± 9 J."""
    found = runs_of_nodes({"a:1": part("GPU-1", "GPU-2"), "b:1": part("GPU-2", "GPU-3")})

    run = combine(list(found.runs.values()))
    assert found.aliases == {}
    assert [device.device_id for device in run.devices] == ["GPU-1", "GPU-2", "GPU-3"]
    assert run.energy("gpu").value == 1_800.0
    assert run.energy("gpu").half_width == pytest.approx(9.0)
    assert run.work == {"steps": 30.0}


def test_runs_of_nodes_without_gpus_have_the_same_start():
    parts = {"a:1": part(), "b:1": part(), "c:1": part(start_s=1e-6)}

    assert runs_of_nodes(parts).aliases == {"b:1": "a:1"}
