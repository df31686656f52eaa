"""Series of a run, and the run that is read from them."""

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wattline.contract import metrics as m
from wattline.contract.api import OUTCOMES, RunGpu
from wattline.contract.power_sensors import gpu_limits_j
from wattline.contract.run import (
    COMPONENTS,
    Emissions,
    Run,
    RunDevice,
    RunFormatError,
    RunPhase,
)
from wattline.contract.run_series import SeriesRow, from_rows, to_rows
from wattline.contract.work import is_shared
from wattline.figures import Figure, unknown

H100 = RunGpu("0", "GPU-0", "NVIDIA H100", "Hopper")
OWN = {"run_id": "r-1"}
GPU = {**OWN, "gpu": "0", "uuid": "GPU-0"}
DEVICE = {**OWN, "component": "gpu", "device": "GPU-0"}
MEASURE = {**OWN, "phase": "measure"}
RUN = Run(
    run_id="r-1",
    workload="train",
    state="ended",
    started_at=1.8e9,
    duration_s=2.0,
    outcome="ok",
    ended_at=1.8e9 + 2,
    labels={"model": "gpt2"},
    gpus=(H100,),
    devices=(
        RunDevice(
            "gpu",
            "GPU-0",
            Figure(
                600.0, 1.5, bias=gpu_limits_j(600.0, "NVIDIA H100", "Hopper"), covered_ratio=0.75
            ),
            attributed_j=300.0,
            before_use_j=12.5,
            integrated_j=590.0,
            shares_j={"idle_shared": 287.5, "idle_apart": 250.0},
        ),
    ),
    phases=(
        RunPhase(
            "measure",
            1.8e9 + 0.5,
            1.5,
            {"gpu": Figure(500.0, 3.0)},
            {"steps": 30.0},
            1.8e9 + 0.5,
        ),
    ),
    work={"steps": 30.0},
    work_unit="steps",
    work_reported_at=1.8e9 + 1.5,
    results={"loss": 0.5},
    emissions=(Emissions("gpu", "average", "actual", 0.25),),
    power_max_w={"GPU-0": 350.0},
)
ROWS = [
    SeriesRow(m.RUN_INFO, {**OWN, "workload": "train", "label_model": "gpt2"}, 1.0),
    SeriesRow(m.RUN_START, OWN, 1.8e9),
    SeriesRow(m.RUN_DURATION, OWN, 2.0),
    SeriesRow(m.RUN_END, OWN, 1.8e9 + 2),
    SeriesRow(m.RUN_OUTCOME, {**OWN, "outcome": "ok"}, 1.0),
    SeriesRow(m.RUN_GPU_INFO, GPU, 1.0),
    SeriesRow(m.RUN_INTEGRATED_ENERGY, GPU, 590.0),
    SeriesRow(m.RUN_POWER_MAX, GPU, 350.0),
    SeriesRow(m.RUN_ENERGY, DEVICE, 600.0),
    SeriesRow(m.RUN_ENERGY_BEFORE_USE, DEVICE, 12.5),
    SeriesRow(m.RUN_ENERGY_UNCERTAINTY, DEVICE, 1.5),
    SeriesRow(m.RUN_COVERED_RATIO, DEVICE, 0.75),
    SeriesRow(m.RUN_ATTRIBUTED_ENERGY, {**DEVICE, "policy": "idle_shared"}, 287.5),
    SeriesRow(m.RUN_ATTRIBUTED_ENERGY, {**DEVICE, "policy": "idle_apart"}, 250.0),
    SeriesRow(
        m.RUN_EMISSIONS,
        {**OWN, "component": "gpu", "basis": "average", "quality": "actual"},
        0.25,
    ),
    SeriesRow(m.RUN_WORK, {**OWN, "unit": "steps"}, 30.0),
    SeriesRow(m.RUN_WORK_UNIT, {**OWN, "unit": "steps"}, 1.0),
    SeriesRow(m.RUN_WORK_TIMESTAMP, OWN, 1.8e9 + 1.5),
    SeriesRow(m.RUN_RESULT, {**OWN, "name": "loss"}, 0.5),
    SeriesRow(m.RUN_PHASE_SECONDS, MEASURE, 1.5),
    SeriesRow(m.RUN_PHASE_START, MEASURE, 1.8e9 + 0.5),
    SeriesRow(m.RUN_PHASE_ENERGY, {**MEASURE, "component": "gpu"}, 500.0),
    SeriesRow(m.RUN_PHASE_ENERGY_UNCERTAINTY, {**MEASURE, "component": "gpu"}, 3.0),
    SeriesRow(m.RUN_PHASE_WORK, {**MEASURE, "unit": "steps"}, 30.0),
]


def gpu_info(run):
    """Return the series of the node that name the GPUs."""
    return [
        SeriesRow(
            m.GPU_INFO,
            {"gpu": one.gpu, "uuid": one.uuid, "name": one.name, "architecture": one.architecture},
            1.0,
        )
        for one in run.gpus
    ]


def test_run_rows_have_every_metric_of_a_run():
    assert list(to_rows(RUN)) == ROWS


def test_run_of_its_rows_is_the_same_run():
    assert from_rows([*ROWS, *gpu_info(RUN)]) == RUN


def test_run_of_rows_names_the_node_of_its_devices():
    run = from_rows(ROWS, "node-a:9847")

    assert [device.node for device in run.devices] == ["node-a:9847"]


def test_run_of_rows_without_half_width_has_its_share():
    """300 J of 600 J are attributed; 2 x 0.25 s at 350 W are 175 J."""
    rows = [row for row in ROWS if row.metric is not m.RUN_ENERGY_UNCERTAINTY]
    (device,) = from_rows(rows).devices

    assert (device.energy_j.value, device.energy_j.half_width) == (600.0, None)
    assert device.attributed_j == 300.0
    assert device.own_energy_j.half_width is None


def test_run_rows_of_the_run_api_have_the_share_without_energy_before_use():
    """300 J are attributed, 12.5 J of them from before the first use: the counter has 287.5 J."""
    device = replace(RUN.devices[0], shares_j={})

    rows = list(to_rows(replace(RUN, devices=(device,))))

    assert SeriesRow(m.RUN_ATTRIBUTED_ENERGY, {**DEVICE, "policy": "idle_shared"}, 287.5) in rows


def test_run_of_rows_of_a_device_used_alone_has_shares_but_no_part():
    """599 of 600 J: the missing 1 J is less than the energy at the edges."""
    alone = replace(RUN.devices[0], before_use_j=0.0, shares_j={"idle_shared": 599.0})

    (device,) = from_rows(to_rows(replace(RUN, devices=(alone,)))).devices

    assert device.attributed_j is None
    assert device.shares_j == {"idle_shared": 599.0}


def test_run_of_rows_of_a_simulated_gpu_has_no_sensor_limits():
    gpu = replace(H100, name="SIMULATED NVIDIA H100")
    run = replace(RUN, gpus=(gpu,))

    (device,) = from_rows([*to_rows(run), *gpu_info(run)]).devices

    assert device.energy_j.bias is None


def test_run_of_rows_keeps_first_and_last_start_of_a_phase():
    again = SeriesRow(m.RUN_PHASE_START, MEASURE, 1.8e9 + 1.25)

    (phase,) = from_rows([*ROWS, again]).phases

    assert (phase.started_at, phase.last_started_at) == (1.8e9 + 0.5, 1.8e9 + 1.25)


def test_run_of_rows_without_a_start_is_refused():
    rows = [row for row in ROWS if row.metric is not m.RUN_START]

    with pytest.raises(RunFormatError, match=r"^wattline_run_start_timestamp_seconds: no series"):
        from_rows(rows)


def test_run_of_rows_of_a_gpu_without_series_has_an_unknown_energy():
    """The run has a second GPU, of which only the name is known: at least 600 J."""
    second = SeriesRow(m.RUN_GPU_INFO, {**OWN, "gpu": "1", "uuid": "GPU-1"}, 1.0)

    run = from_rows([*ROWS, second])

    assert [device.device_id for device in run.devices] == ["GPU-0", "GPU-1"]
    assert (run.energy("gpu").state, run.energy("gpu").value) == ("partial", 600.0)
    assert run.unit_energy("steps") is None


def test_run_of_rows_of_an_unknown_component_is_refused():
    rows = [*ROWS, SeriesRow(m.RUN_ENERGY, {**DEVICE, "component": "npu"}, 1.0)]

    with pytest.raises(RunFormatError, match="component 'npu' is not known"):
        from_rows(rows)


# Any run


JOULES = st.floats(0, 1e9)
NAMES = st.text(st.characters(codec="ascii", categories=["L", "N"]), min_size=1, max_size=4)
AMOUNTS = st.dictionaries(NAMES, JOULES, max_size=2)
KNOWN = st.builds(Figure, JOULES, st.none() | JOULES, covered_ratio=st.floats(0, 1))
PARTIAL = st.builds(
    Figure,
    JOULES,
    JOULES,
    rest=st.just((0.0, math.inf)) | st.tuples(st.just(0.0), JOULES),
    covered_ratio=st.floats(0, 1),
    reason=NAMES,
)
SKEWED = st.builds(lambda value, up: Figure(value, skewed=(value - 1, value + up)), JOULES, JOULES)
FIGURES = KNOWN | PARTIAL | SKEWED | st.builds(unknown, NAMES)
SHARES = st.dictionaries(st.sampled_from(["idle_shared", "idle_apart"]), JOULES)
GPU_DEVICES = st.builds(
    RunDevice,
    st.just("gpu"),
    st.sampled_from(["GPU-0", "GPU-1"]),
    FIGURES,
    before_use_j=JOULES,
    integrated_j=st.none() | JOULES,
    shares_j=SHARES,
)
OTHER_DEVICES = st.builds(
    RunDevice,
    st.sampled_from(["cpu", "dram"]),
    st.sampled_from(["0", "1"]),
    FIGURES,
    shares_j=SHARES,
)
PHASES = st.builds(
    RunPhase,
    NAMES,
    JOULES,
    JOULES,
    st.dictionaries(st.sampled_from(COMPONENTS), FIGURES),
    AMOUNTS,
    st.none() | JOULES,
)
GPUS = (H100, RunGpu("1", "GPU-1", "SIMULATED NVIDIA H200", "Hopper"))
RUNS = st.builds(
    Run,
    run_id=NAMES,
    workload=NAMES,
    state=st.just("running"),
    started_at=JOULES,
    duration_s=JOULES,
    labels=st.dictionaries(NAMES, NAMES, max_size=2),
    gpus=st.just(GPUS),
    devices=st.lists(
        GPU_DEVICES | OTHER_DEVICES,
        max_size=4,
        unique_by=lambda one: (one.component, one.device_id),
    ).map(tuple),
    phases=st.lists(PHASES, max_size=2, unique_by=lambda phase: phase.name).map(tuple),
    work=AMOUNTS,
    work_unit=st.none() | NAMES,
    work_reported_at=st.none() | JOULES,
    results=AMOUNTS,
    settled_until=st.none() | JOULES,
    emissions=st.lists(
        st.builds(
            Emissions,
            st.sampled_from(COMPONENTS),
            NAMES,
            NAMES,
            JOULES,
            st.sampled_from([1.0, 0.25]),
        ),
        max_size=2,
        unique_by=lambda one: (one.component, one.basis),
    ).map(tuple),
    power_max_w=st.dictionaries(st.sampled_from(["GPU-0", "GPU-1"]), st.floats(0, 2_000)),
    notes=st.lists(NAMES, max_size=1).map(tuple),
    simulation=st.none() | NAMES,
)


def end(run, ended_at, outcome):
    return replace(run, state="ended", ended_at=ended_at, outcome=outcome)


ANY_RUN = RUNS | st.builds(end, RUNS, JOULES, st.sampled_from(OUTCOMES))


LOST = unknown("the exporter has no series of this energy")


def in_series(run):
    """Return what the series say of a run; see `from_rows`."""
    present = {device.device_id for device in run.devices if device.component == "gpu"}
    others = [gpu.uuid for gpu in run.gpus if gpu.uuid not in present and run.ended_at is not None]
    return replace(
        run,
        devices=(
            *(device_in_series(run, device) for device in run.devices),
            *(RunDevice("gpu", uuid, LOST) for uuid in others),
        ),
        phases=tuple(phase_in_series(run, phase) for phase in run.phases),
        settled_until=None,
        notes=(),
        simulation=None,
    )


def device_in_series(run, device):
    energy = device.energy_j
    if energy.value is None:
        return replace(device, energy_j=LOST, attributed_j=None)
    bias = None
    if device.device_id == "GPU-0":  # the other one is simulated
        bias = gpu_limits_j(energy.value, "NVIDIA H100", "Hopper")
    attributed_j = None
    if "idle_shared" in device.shares_j:
        share_j = device.shares_j["idle_shared"] + device.before_use_j
        mean_w = energy.value / run.duration_s if run.duration_s else 0.0
        highest_w = run.power_max_w.get(device.device_id, 0.0)
        half_j = energy.half_width
        if is_shared(
            energy.value, share_j, mean_power_w=mean_w, max_power_w=highest_w, half_j=half_j
        ):
            attributed_j = share_j
    return replace(
        device,
        energy_j=Figure(
            energy.value, energy.half_width, bias=bias, covered_ratio=energy.covered_ratio
        ),
        attributed_j=attributed_j,
    )


def phase_in_series(run, phase):
    started_at = run.started_at if phase.last_started_at is None else phase.last_started_at
    energies_j = {
        component: Figure(energy.value, energy.half_width)
        for component, energy in phase.energies_j.items()
        if energy.value is not None
    }
    return replace(phase, started_at=started_at, energies_j=energies_j)


@given(ANY_RUN)
def test_run_of_rows_of_any_run_has_what_series_say(run):
    """The run that was read has all that series say: its own rows are those of the same run."""
    shown = from_rows([*to_rows(run), *gpu_info(run)])

    assert shown == in_series(run)
    assert list(shown.work) == list(run.work)
    assert from_rows([*to_rows(shown), *gpu_info(shown)]) == shown
