"""Devices assigned to each run."""

from dataclasses import replace

import pytest

from wattline.contract.metrics import GPU_UTILIZATION
from wattline_exporter.attribution.device_loads import NO_RUN
from wattline_exporter.attribution.policy import Attribution
from wattline_exporter.polling.health import GpuHealth
from wattline_exporter.polling.live_state import LiveState
from wattline_exporter.runs.holders import DeviceHolders
from wattline_exporter.runs.run_record import RunRecord
from wattline_exporter.sensors.processes.cgroup_paths import CgroupOwner
from wattline_exporter.sensors.processes.procfs import ProcessKey
from wattline_exporter.sensors.readings import Device, GpuInfo, GpuProcess, Poll, Reading

JOB_1 = CgroupOwner("slurm", "1", "")
GPU, OTHER = Device("gpu", "GPU-0"), Device("gpu", "GPU-1")


def run_on(*devices, discovers=False, seen_on=()):
    return RunRecord(
        run_id="a",
        workload="test",
        labels={},
        request="{}",
        devices=list(devices),
        gpus={},
        discovers=discovers,
        begin_s=0.0,
        started_at=0.0,
        lease_s=60.0,
        lease_until_s=60.0,
        alive_s=0.0,
        processes=[ProcessKey(1, 1.0)],
        seen_on=list(seen_on),
    )


def loads_of(*runs, processes=None, owner="a"):
    """Return the loads on each GPU; `processes` are those on it. Process 1 belongs to the run
    `owner`.
    """
    live, energies = LiveState(), Attribution()
    for device in (GPU, OTHER):
        live.gpus[device.id] = GpuHealth(GpuInfo("0", device.id, "test", "", "", ""), device, 0.0)
        live.gpus[device.id].processes = tuple((processes or {}).get(device, ()))
        live.energy.push([Poll(device, 0.0, 0.0, 0.0, 300.0)])
    attribution = DeviceHolders(live, energies, 0.0)
    attribution._owners = {1: (owner, 0.0)}
    attribution.hold(runs)
    return {device: changes[-1][1].loads for device, changes in energies._holders.items()}


@pytest.mark.parametrize(("utilization", "least_w"), [(0.0, 76.0), (0.9, 76.0), (None, 0.0)])
def test_idle_power_limits_gpus_that_report_whether_they_are_used(utilization, least_w):
    # 80 W less 5 %
    live = LiveState()
    gpu = GpuHealth(GpuInfo("0", GPU.id, "test", "", "", ""), GPU, 0.0)
    if utilization is not None:
        labels = ("0", GPU.id, "gpu")
        gpu.readings[GPU_UTILIZATION.name, labels] = Reading(GPU_UTILIZATION, labels, utilization)
    live.gpus[GPU.id] = gpu
    live.energy.push([Poll(GPU, 0.0, 0.0, 0.0, 300.0)])
    DeviceHolders(live, Attribution(idle_w={GPU: 80.0}), 0.0).divide()

    assert live.energy.meters[GPU].least_w == pytest.approx(least_w)


def test_run_with_named_gpus_holds_them_before_its_processes_start():
    loads = loads_of(run_on(GPU), processes={OTHER: [GpuProcess(1, None, 0.5)]})

    assert loads == {GPU: {"a": 0}, OTHER: {NO_RUN: 0.5}}


def test_run_with_discovered_gpus_holds_those_of_its_processes():
    loads = loads_of(run_on(GPU, OTHER, discovers=True, seen_on=["GPU-1"]))

    assert loads == {GPU: {}, OTHER: {"a": 0}}


@pytest.mark.parametrize("processes", [{}, {GPU: [GpuProcess(1, None, 0.5)]}], ids=["idle", "busy"])
@pytest.mark.parametrize(
    "outer", [{"workload": "llm-server", "labels": {"server": "app"}}, {"discovered": JOB_1}]
)
def test_job_with_the_processes_of_a_run_of_lower_rank_holds_its_gpu_alone(outer, processes):
    """A server has begun a run for its reports, or a run was discovered. Idle power is not divided
    with it.
    """
    server, job = replace(run_on(GPU), run_id="server", **outer), replace(run_on(GPU), run_id="job")

    assert loads_of(server, job, processes=processes, owner="job")[GPU].keys() == {"job"}


def test_runs_of_two_clients_with_one_process_share_its_gpu():
    first, second = (replace(run_on(GPU), run_id=run_id) for run_id in ("first", "second"))

    assert loads_of(first, second, owner="second")[GPU].keys() == {"first", "second"}


def test_run_of_a_server_is_inside_a_discovered_one():
    found = replace(run_on(GPU), run_id="found", discovered=JOB_1)
    server = replace(run_on(GPU), run_id="server", workload="llm-server", labels={"server": "app"})

    assert loads_of(found, server, owner="server")[GPU].keys() == {"server"}
