"""Owner counters of a ledger in virtual time, whose GPU draws a known power, over restarts and in a
real Prometheus.
"""

import numpy as np
import pytest

from tests import servers
from tests.analyzer.fleet_nodes import NodeSeries, write_prometheus_blocks
from tests.exporter.runs.two_gpu_node import (
    EMISSIONS,
    ENERGY,
    SCRAPE_S,
    SECONDS,
    START_S,
    TwoGpuNode,
    job,
)
from wattline_exporter.attribution.cpu_time import NodeCpuUsage, RunCpuUsage
from wattline_exporter.runs.admission import DiscoveredRun, RunProcesses, RunStart
from wattline_exporter.sensors.processes.cgroup_paths import CgroupOwner
from wattline_exporter.sensors.processes.procfs import ProcessKey
from wattline_exporter.sensors.readings import Device, GpuProcess


@pytest.fixture
def node(tmp_path):
    made = TwoGpuNode(tmp_path)
    yield made
    made.file.close()


def test_owner_counters_have_the_owner_of_each_kind_of_run(node):
    node.run_for(2)
    owners = [
        (job(1), {"user": "ada", "account": "physics"}, ("slurm", "ada", "physics", "slurm")),
        (
            CgroupOwner("kubernetes", "5d1c", "/p"),
            {"namespace": "ml"},
            ("kubernetes", "ml", "", "kubernetes"),
        ),
        (
            CgroupOwner("service", "vllm.service", "/v"),
            {"user": "x"},
            ("service", "vllm.service", "", "service"),
        ),
        (CgroupOwner("user", "0", ""), {}, ("user", "root", "", "user")),
        (CgroupOwner("container", "4f" * 32, "/gone"), {}, ("container", "", "", "container")),
    ]
    for number, (owner, labels, _) in enumerate(owners):
        node.begin(f"run-{number}", owner, labels, [0])
    run, _ = node.ledger.begin(RunStart(workload="training", labels={"user": "bob"}, gpus=["0"]))
    node.ledger.confirm_begin(run)
    node.run_for(10)
    found = {labels[:4] for labels in node.values(ENERGY)}
    assert found == {
        *(expected for *_, expected in owners),
        ("run", "bob", "", "training"),
        ("none", "", "", ""),
    }


def test_owner_counters_run_of_a_process_has_its_login_name(node):
    node.run_for(2)
    run, _ = node.ledger.begin(RunStart(workload="training", gpus=["0"], pids=[1]))
    node.ledger.confirm_begin(run)
    assert run.owner == ("run", "root", "", "training")


def test_owner_counters_start_of_a_run_has_its_later_login_name(node):
    node.run_for(30)
    run, _ = node.ledger.begin(RunStart(workload="training", gpus=["0"]))
    node.ledger.confirm_begin(run)
    node.watts[0] = 500.0
    node.run_for(2)  # at 500 W without a process
    node.ledger.add_processes(run.run_id, RunProcesses(pids=[1]))
    node.run_for(8)
    run_j = node.values(ENERGY)["run", "root", "", "training", "gpu", "idle_shared"]
    assert run_j == pytest.approx(5_000, abs=1)
    assert ("run", "", "", "training", "gpu", "idle_shared") not in node.values(ENERGY)
    assert node.values(SECONDS)["run", "root", "", "training"] == pytest.approx(10.0)


def test_owner_counters_run_without_a_process_adds_up_after_5_s(node):
    node.run_for(30)
    run, _ = node.ledger.begin(RunStart(workload="training", gpus=["0"]))
    node.ledger.confirm_begin(run)
    node.run_for(4)
    assert ("run", "", "", "training") not in node.values(SECONDS)
    node.run_for(6)
    assert node.values(SECONDS)["run", "", "", "training"] == pytest.approx(10.0)
    total_j = sum(
        joules for labels, joules in node.values(ENERGY).items() if labels[-1] == "idle_shared"
    )
    assert total_j == pytest.approx(sum(node.gpu_j) - 160.0, rel=1e-9)
    grams = sum(node.values(EMISSIONS).values())
    assert grams == pytest.approx(sum(node.live.energy.emissions_grams.values()), rel=1e-9)


def test_owner_counters_stay_after_the_pod_is_gone_and_add_up(node):
    node.run_for(30)
    pod = node.begin("pod-1", CgroupOwner("kubernetes", "1", "/pod1"), {"namespace": "ml"}, [0])
    node.watts[0] = 500.0
    node.run_for(200)
    node.end(pod)
    node.watts[0] = 80.0
    node.run_for(2_000)
    assert "pod-1" not in node.ledger.runs
    assert node.shared("kubernetes", "ml", "kubernetes") == pytest.approx(100_000, abs=1)
    for policy in ("idle_apart", "idle_shared"):
        total_j = sum(
            joules for labels, joules in node.values(ENERGY).items() if labels[-1] == policy
        )
        assert total_j == pytest.approx(
            sum(node.gpu_j) - 160.0, rel=1e-9
        )  # of the first second nothing is known
    grams = sum(node.values(EMISSIONS).values())
    assert grams == pytest.approx(sum(node.live.energy.emissions_grams.values()), rel=1e-9)
    assert grams == pytest.approx((sum(node.gpu_j) - 160.0) * 1e-4, rel=1e-9)
    assert node.values(SECONDS)["kubernetes", "ml", "", "kubernetes"] == pytest.approx(200.0)
    assert sum(node.values(SECONDS).values()) == pytest.approx(2 * (30 + 200 + 2_000 - 1))


def test_owner_counters_time_sliced_gpu_is_divided_by_load(node):
    node.run_for(30)
    first = node.begin("pod-1", CgroupOwner("kubernetes", "1", "/pod1"), {"namespace": "ml"}, [0])
    second = node.begin("pod-2", CgroupOwner("kubernetes", "2", "/pod2"), {"namespace": "web"}, [0])
    gpu = node.live.gpus["GPU-1"]
    gpu.processes = (GpuProcess(11, utilization=0.6), GpuProcess(12, utilization=0.2))
    first.cgroup = second.cgroup = "/pod"
    node.ledger.attribution._owners = {11: ("pod-1", node.s + 1e6), 12: ("pod-2", node.s + 1e6)}
    node.watts[0] = 480.0
    node.run_for(100)
    # 80 W of idle power in equal parts, 400 W above it as 3 to 1
    assert node.shared("kubernetes", "ml", "kubernetes") == pytest.approx(4_000 + 30_000, rel=0.02)
    assert node.shared("kubernetes", "web", "kubernetes") == pytest.approx(4_000 + 10_000, rel=0.02)
    assert node.values(SECONDS)["kubernetes", "web", "", "kubernetes"] == pytest.approx(
        50.0, abs=1.0
    )


@pytest.mark.parametrize("others_pid", [None, 12])
def test_owner_counters_discovered_run_has_no_share_of_its_clients_run(node, others_pid):
    """The user's processes are 11, which is also the client's, and 12, if there is one."""
    node.run_for(30)
    gpu, named = node.live.gpus["GPU-1"], [ProcessKey(pid, 1.0) for pid in (11, 12)]
    gpu.processes = tuple(GpuProcess(pid, utilization=0.4) for pid in (11, others_pid) if pid)
    node.watts[0] = 480.0
    user = node.begin("user", CgroupOwner("user", "0", ""), {"user": "ada"}, [0])
    user.processes = named[: len(gpu.processes)]
    client, _ = node.ledger.begin(RunStart(workload="training", labels={"user": "bob"}, gpus=["0"]))
    client.processes = named[:1]
    node.ledger.confirm_begin(client)
    node.ledger.attribution._owners = {
        11: (client.run_id, node.s + 1e6),
        12: ("user", node.s + 1e6),
    }
    node.run_for(100)
    client_j, user_j = node.shared("run", "bob", "training"), node.shared("user", "ada", "user")
    seconds = node.values(SECONDS)["run", "bob", "", "training"]
    if others_pid is None:
        assert (client_j, user_j or 0.0, seconds) == (
            pytest.approx(48_000),
            pytest.approx(0.0),
            pytest.approx(100.0),
        )
    else:
        assert (client_j, user_j, seconds) == (
            pytest.approx(24_000),
            pytest.approx(24_000),
            pytest.approx(50.0),
        )


def test_owner_counters_gap_of_a_restart_goes_to_the_clients_run(node):
    node.run_for(30)
    user = node.begin("user", CgroupOwner("user", "0", ""), {"user": "ada"}, [0])
    client, _ = node.ledger.begin(RunStart(workload="training", labels={"user": "bob"}, gpus=["0"]))
    user.processes = client.processes = [ProcessKey(11, 1.0)]
    node.ledger.confirm_begin(client)
    node.watts[0] = 480.0
    node.run_for(2)
    node.file.close()
    node.s += 50.0
    node.gpu_j[0] += 50 * 480.0
    node.start()
    node.run_for(1)
    assert node.shared("run", "bob", "training") == pytest.approx((2 + 50 + 1) * 480.0, rel=1e-6)


def test_owner_counters_late_use_in_a_discovered_run_is_not_shared(node):
    """The discovery finds the process on the GPU before the client's run does."""
    node.run_for(30)
    client, _ = node.ledger.begin(RunStart(workload="training", gpus=[]))
    client.processes = [ProcessKey(11, 1.0)]
    node.ledger.confirm_begin(client)
    node.watts[0] = 480.0
    node.run_for(3)
    node.live.gpus["GPU-1"].processes = (GpuProcess(11, utilization=0.4),)
    used = RunCpuUsage(0.0, frozenset({11}), frozenset({11}))
    node.ledger.attribution._usage = NodeCpuUsage(node.s, 0.0, {client.run_id: used})
    node.ledger.attribution._owners = {11: (client.run_id, node.s + 1e6)}
    found = DiscoveredRun(
        "user",
        CgroupOwner("user", "0", ""),
        node.s - 3.0,
        {},
        (),
        ("GPU-1",),
        [ProcessKey(11, 1.0)],
    )
    user = node.ledger.begin_discovered(found)
    node.run_for(10)
    assert user.first_use == {}
    assert client.before_use_j(Device("gpu", "GPU-1")) == pytest.approx(3 * 480.0, abs=10)
    node.end(client)
    assert client.attributed_j[Device("gpu", "GPU-1")] == pytest.approx(13 * 480.0, rel=0.001)


def test_share_with_energy_before_first_use_is_at_most_the_runs_energy(node):
    """The first use lies between two slow polls, in which the power falls: the energy before it is
    first too high.
    """
    gpu = Device("gpu", "GPU-1")
    node.watts[0] = 480.0
    node.run_for(30)
    node.s += 0.9
    node.gpu_j[0] += 0.9 * 80.0
    node.ledger.attribution.tick(node.ledger.runs.values(), node.s)
    found = DiscoveredRun(
        "user",
        CgroupOwner("user", "0", ""),
        node.s - 0.9,
        {},
        (),
        ("GPU-1",),
        [ProcessKey(11, 1.0)],
    )
    user = node.ledger.begin_discovered(found)
    node.watts[0] = 80.0
    node.run_for(10)
    node.end(user)
    energy_j = user.final[gpu].joules - user.begin[gpu].joules
    assert user.before_use_j(gpu) > 0.0
    assert user.attributed_j[gpu] == pytest.approx(energy_j, rel=1e-6)


def test_energy_before_two_runs_begin_on_a_gpu_belongs_to_neither(node):
    """Both begin at one scan: the first of them has not used the GPU alone before it."""
    gpu, found = Device("gpu", "GPU-1"), []
    node.watts[0] = 480.0
    node.run_for(30)
    for pid in (11, 12):
        owner, process = CgroupOwner("user", str(pid), ""), ProcessKey(pid, 1.0)
        found.append(
            DiscoveredRun(
                str(pid), owner, node.s - 3.0, {}, (), (gpu.id,), [process], frozenset({gpu.id})
            )
        )
    runs = [node.ledger.begin_discovered(each) for each in found]
    node.live.gpus[gpu.id].processes = (
        GpuProcess(11, utilization=0.4),
        GpuProcess(12, utilization=0.4),
    )
    node.run_for(10)
    for run in runs:
        node.end(run)
    assert [run.before_use_j(gpu) for run in runs] == [0.0, 0.0]
    assert sum(run.attributed_j[gpu] for run in runs) <= 10.1 * 480.0


def test_owner_counters_survive_a_kill_at_their_saved_values(node):
    node.run_for(5)
    node.begin("job", job(1), {"user": "ada"}, [0])
    node.watts[0] = 500.0
    node.run_for(100)
    node.scrape()
    scraped = {key: samples[-1][1] for key, samples in node.scraped.items() if key[0] == ENERGY}
    node.file.close()
    node.s += 7.0  # down for 7 s, in which the job uses the GPU
    node.gpu_j = [node.gpu_j[0] + 7 * 500.0, node.gpu_j[1] + 7 * 80.0]
    node.start()
    node.scrape()
    restored = {key: samples[-1][1] for key, samples in node.scraped.items() if key[0] == ENERGY}
    assert restored.keys() == scraped.keys()
    assert all(restored[key] >= scraped[key] for key in scraped)
    node.run_for(93)
    assert node.shared("slurm", "ada", "slurm") == pytest.approx(200 * 500.0, abs=500.0)
    for policy in ("idle_apart", "idle_shared"):
        total_j = sum(
            joules for labels, joules in node.values(ENERGY).items() if labels[-1] == policy
        )
        assert total_j == pytest.approx(
            sum(m.totals.energy_j for m in node.live.energy.meters.values()), rel=1e-9
        )


def test_owner_counters_ended_pods_increase_in_prometheus_is_their_energy(node, tmp_path):
    """Many short pods of one namespace, each shorter than three scrapes, the first one born between
    two scrapes.
    """
    node.run_for(600)
    true_j = 0.0
    for number in range(30):
        node.run_for(7 + number % 5)
        pod = node.begin(
            f"pod-{number}", CgroupOwner("kubernetes", str(number), "/p"), {"namespace": "ml"}, [0]
        )
        node.watts[0] = 400.0 + number
        node.run_for(20)
        true_j += 20 * node.watts[0]
        node.end(pod)
        node.watts[0] = 80.0
    node.run_for(900)
    series = [
        NodeSeries({"__name__": name, "instance": "a:9847", **dict(labels)}, *np.array(samples).T)
        for (name, *labels), samples in node.scraped.items()
    ]
    write_prometheus_blocks(tmp_path, series)
    end_at = node.scraped[ENERGY, *min(key[1:] for key in node.scraped if key[0] == ENERGY)][-1][0]
    window_s = round(node.s - START_S - 10.0)
    selector = f'{ENERGY}{{kind="kubernetes",owner="ml",policy="idle_shared"}}'
    with servers.prometheus(tmp_path, [], flags=["--storage.tsdb.retention.time=3000d"]) as address:
        (increase_j,) = servers.query(address, f"sum(increase({selector}[{window_s}s] @ {end_at}))")
        (last_j,) = servers.query(
            address, f"sum(last_over_time({selector}[{window_s}s] @ {end_at}))"
        )
        (first_j,) = servers.query(
            address, f"sum(min_over_time({selector}[{window_s}s] @ {end_at}))"
        )
    assert (first_j, last_j) == (0.0, pytest.approx(true_j, abs=30 * 1.0))
    # increase() extrapolates to the end of the window, by less than a scrape interval of the 1,600
    # s of samples
    assert increase_j == pytest.approx(true_j, rel=SCRAPE_S / 1_500)
