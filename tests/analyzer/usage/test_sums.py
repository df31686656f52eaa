"""Rows of a usage window from facts by hand."""

from dataclasses import replace

import pytest

from tests.analyzer.usage.small_facts import GPU, counter, gpu, owner, run_part, unattributed, usage
from wattline.contract import metrics as m
from wattline.contract.api import RunGpu
from wattline.contract.run import Run, RunDevice, RunPhase
from wattline.figures import Figure

SHARES = {"idle_shared": 3_000.0}
DEVICE = RunDevice("gpu", GPU, Figure(3_000.0, 3.0), shares_j=SHARES)
RUN = Run(
    run_id="r-1",
    workload="train",
    state="ended",
    started_at=100.0,
    duration_s=10.0,
    outcome="ok",
    ended_at=110.0,
    labels={"model": "m", "user": "ada"},
    gpus=(RunGpu("0", GPU, "NVIDIA H100"),),
    devices=(DEVICE,),
    work={"steps": 10.0},
)
ATTRIBUTED = (m.RUN_ATTRIBUTED_ENERGY.name, ("r-1", "gpu", GPU, "idle_shared"))
WORK = (m.RUN_WORK.name, ("r-1", "steps"))


def only_row(parts, by="model"):
    (row,) = usage([gpu(5_000.0), unattributed(2_000.0)], parts, by=by).groups
    return row


def work_of(*runs):
    """Return the joules and the amount of the work of a run with a part on each node."""
    row = only_row([run_part(run, node) for node, run in zip("abc", runs, strict=False)])
    use = row.work["steps"]
    return use.joules, use.amount


def test_rows_and_unattributed_add_up_to_the_devices():
    found = usage([gpu(5_000.0), unattributed(2_000.0)], [run_part(RUN)])

    assert found.groups[0].joules == {"gpu": 3_000.0}
    assert found.unattributed[0].joules == {"gpu": 2_000.0}
    assert found.remainder.joules == {"gpu": 0.0}
    assert found.total.energy == Figure(5_000.0)


def test_row_of_run_that_started_earlier_has_its_part_in_the_window():
    """1,000 J of 3,000 J, and 4 of 10 steps, are older: 2,000 J and 6 steps are left."""
    row = only_row([run_part(RUN, before={ATTRIBUTED: 1_000.0, WORK: 4.0})])

    assert row.energy_j == 2_000.0
    assert row.work["steps"].amount == 6.0
    assert row.work["steps"].joules == pytest.approx(3_000 * 2 / 3)


def test_row_of_a_node_that_counts_later_is_partial():
    row = only_row([run_part(RUN, before={ATTRIBUTED: 1_000.0}, reason="a counts from 00:01:00")])

    assert row.energy.state == "partial"
    assert row.energy.rest == (0.0, float("inf"))
    assert row.energy.reason == "a counts from 00:01:00"


def test_row_half_width_is_that_of_independent_runs():
    """Two runs of ± 3 J: the root of 9 + 9."""
    other = replace(RUN, run_id="r-2")

    assert only_row([run_part(RUN), run_part(other)]).half_j == pytest.approx(18**0.5)


def test_row_half_width_includes_energy_that_attribution_missed():
    """± 3 J, and 40 J of 3,000 J that were not attributed."""
    device = replace(DEVICE, shares_j={"idle_shared": 2_960.0})

    assert only_row([run_part(replace(RUN, devices=(device,)))]).half_j == pytest.approx(43)


@pytest.mark.parametrize("share_j", [2_699.0, 100.0])
def test_row_of_a_shared_device_has_no_half_width(share_j):
    """Below 90 % of the energy of the device, the run was not alone."""
    device = replace(DEVICE, shares_j={"idle_shared": share_j})

    assert only_row([run_part(replace(RUN, devices=(device,)))]).half_j is None


def test_row_of_running_run_has_no_half_width():
    device = RunDevice("gpu", GPU, Figure(3_000.0), shares_j=SHARES)
    running = replace(RUN, state="running", ended_at=None, outcome=None, devices=(device,))

    assert only_row([run_part(running)]).half_j is None


def test_work_has_the_energy_of_its_run():
    assert work_of(RUN) == (pytest.approx(3_000), 10.0)


def test_work_in_a_phase_has_the_energy_of_the_phase():
    phase = RunPhase("measure", 100.0, 5.0, {"gpu": Figure(1_800.0)}, {"steps": 10.0})

    assert work_of(replace(RUN, phases=(phase,))) == (pytest.approx(1_800), 10.0)


def test_work_in_phases_on_two_nodes_has_the_energy_of_both():
    """300 J on each node during the phase; the second node counts no work."""
    phase = RunPhase("measure", 100.0, 5.0, {"gpu": Figure(300.0)}, {"steps": 10.0})
    other = replace(
        RUN,
        gpus=(RunGpu("0", "GPU-b", ""),),
        devices=(replace(DEVICE, device_id="GPU-b"),),
        phases=(replace(phase, work={}),),
        work={},
    )

    joules, amount = work_of(replace(RUN, phases=(phase,)), other)

    assert (joules, amount) == (pytest.approx(600), 10.0)


def test_work_on_a_shared_gpu_and_another_one_adds():
    """1,200 J of the shared GPU are the run's, and all 2,000 J of the other one."""
    shared = replace(DEVICE, attributed_j=1_200.0, shares_j={"idle_shared": 1_200.0})
    alone = replace(
        RUN,
        gpus=(RunGpu("0", "GPU-b", ""),),
        devices=(
            RunDevice("gpu", "GPU-b", Figure(2_000.0, 3.0), shares_j={"idle_shared": 2_000.0}),
        ),
        work={},
    )

    assert work_of(replace(RUN, devices=(shared,)), alone) == (pytest.approx(3_200), 10.0)


def test_row_of_run_without_attributed_energy_has_none():
    device = replace(DEVICE, shares_j={"idle_shared": 0.0})

    row = only_row([run_part(replace(RUN, devices=(device,)))])

    assert (row.energy, row.runs) == (None, 1)


def test_owner_row_with_less_energy_than_its_runs_is_marked():
    """The runs of ada have 3,000 J, her counters 2,500 J: new owners are counted later."""
    counters = [gpu(5_000.0), owner(2_500.0, "ada"), owner(2_000.0, "")]
    found = usage(counters, [run_part(RUN)], by="user")

    assert found.by_owners
    assert (found.groups[0].energy_j, found.groups[0].runs_j) == (2_500.0, 3_000.0)
    assert found.groups[0].is_below_runs


def test_owner_row_with_short_runs_is_not_marked():
    counters = [gpu(5_500.0), owner(3_500.0, "ada"), owner(2_000.0, "")]
    found = usage(counters, [run_part(RUN)], by="user")

    assert found.groups[0].energy_j == 3_500.0
    assert not found.groups[0].is_below_runs


def test_owner_row_that_may_be_older_states_its_limits():
    counters = [
        gpu(5_000.0),
        owner(3_000.0, "ada", hidden=40.0),
        owner(2_000.0, ""),
    ]
    counters[1] = replace(counters[1], reason="a: an owner was new at the start")
    (row,) = usage(counters, by="user").groups

    assert row.energy == Figure(
        3_000.0, rest=(-40.0, 0.0), reason="a: an owner was new at the start"
    )


def test_owners_that_lack_more_than_runs_are_not_used():
    """An exporter of less than 65 s shows all owners at 0."""
    counters = [gpu(5_000.0), unattributed(2_000.0), owner(0.0, "ada"), owner(0.0, "")]
    found = usage(counters, [run_part(RUN)], by="user")

    assert not found.by_owners
    assert found.groups[0].energy_j == 3_000.0


def test_remainder_is_known_for_each_node():
    """+500 J on node a and -500 J on node b have no remainder together."""
    counters = [gpu(3_500.0), gpu(2_500.0, node="b")]
    on_b = replace(RUN, run_id="r-2")
    found = usage(counters, [run_part(RUN), run_part(on_b, "b")])

    assert found.remainder.joules == {"gpu": 0.0}
    assert found.nodes_remainder_j == {"a": (500.0, 3_500.0), "b": (-500.0, 2_500.0)}


def test_emissions_without_increase_are_none():
    """The devices used 5,000 J, and the counter of emissions stayed: the intensity was unknown."""
    emissions = counter(
        m.EMISSIONS, 0.0, component="gpu", device=GPU, basis="average", quality="actual"
    )
    found = usage([gpu(5_000.0), emissions], [run_part(RUN)])

    assert (found.total.grams, found.groups[0].grams) == ({}, {})


def test_emissions_of_a_part_of_the_energy_state_their_share():
    """22 J at 3.6 MJ/kWh and 200 g/kWh, of 100 J."""
    emissions = counter(
        m.EMISSIONS,
        22 * 200 / 3.6e6,
        component="gpu",
        device=GPU,
        basis="average",
        quality="actual",
    )
    found = usage(
        [gpu(100.0), emissions], intensities={("a", "average", "actual"): 200.0}, by="model"
    )

    assert found.emission_shares == {"average": pytest.approx(0.22)}
