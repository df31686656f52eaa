"""GPUs that are lost, unbound, recovered, or added late."""

import time
from functools import partial

import pytest

from tests.daemon import begin, daemon, end
from tests.exporter.daemon.eight_gpus.observation import (
    FAULTY,
    OTHERS,
    counters,
    covered,
    gpus_up,
    is_monotonic,
    load_w,
    up_by_gpu,
    wrong_intervals,
)
from tests.polling import eventually
from wattline_exporter.sensors.readings import boottime
from wattline_exporter.simulation import Fault


def _has_gpus(exporter, uuids) -> bool:
    return gpus_up(exporter) == uuids


@pytest.mark.parametrize("reload", [False, True], ids=["GPU reset", "driver reload"])
def test_one_of_eight_lost_recovers_with_its_counter_at_0(node, serve, reload):
    with serve() as exporter:
        run_id = begin(exporter)["run_id"]
        time.sleep(2.0)
        scrapes = [counters(exporter)]
        node.set_fault(FAULTY, Fault.LOST, on=True)
        exporter.wait_for_metric(lambda up: up == 0, "wattline_gpu_up", gpu=str(FAULTY))
        assert up_by_gpu(exporter) == {i: float(i != FAULTY) for i in range(8)}
        scrapes.append(counters(exporter))
        if reload:
            node.unload_driver()
            eventually(
                lambda: set(up_by_gpu(exporter).values()) == {0.0}, "all are down", exporter.log
            )
            node.set_fault(FAULTY, Fault.LOST, on=False)
            node.load_driver()
        else:
            node.jump_counter(FAULTY, -node.counter_j(FAULTY, boottime()))
            node.set_fault(FAULTY, Fault.LOST, on=False)
        eventually(
            lambda: up_by_gpu(exporter) == dict.fromkeys(range(8), 1.0), "all eight", exporter.log
        )
        for _ in range(3):
            scrapes.append(counters(exporter))
            time.sleep(0.5)
        run = end(exporter, run_id)

    assert is_monotonic(scrapes)
    seven = {uuid for _, uuid in scrapes[1]}
    assert seven == {node.gpus[i].uuid for i in OTHERS}
    assert wrong_intervals(run, node) == {}
    assert (
        run["energy_joules"]["gpu"][node.gpus[FAULTY].uuid]
        <= load_w(FAULTY) * run["duration_seconds"] * 1.01
    )
    assert any("was reset" in note and node.gpus[FAULTY].uuid in note for note in run["notes"])
    if not reload:
        assert all(covered(run, node, i) > 0.95 for i in OTHERS)
        assert not any(
            "was reset" in note and node.gpus[i].uuid in note
            for note in run["notes"]
            for i in OTHERS
        )


def test_gpus_unbound_and_bound_again_are_followed(tmp_path):
    options = ("--simulate", "8xH200", "--no-collector.rapl", "--no-collector.host")
    with daemon(tmp_path, *options) as exporter, exporter.simulation() as simulation:
        uuids = [gpu.uuid for gpu in simulation.gpus]
        scrapes = [counters(exporter)]
        for unbound in ([7], [0, 7], [0], []):
            for i in range(8):
                simulation.set_fault(i, Fault.UNBOUND, on=i in unbound)
            kept = {uuid for i, uuid in enumerate(uuids) if i not in unbound}
            eventually(partial(_has_gpus, exporter, kept), f"all but {unbound}", exporter.log)
            scrapes.append(counters(exporter))

    assert is_monotonic(scrapes)
    assert [len(scrape) // 2 for scrape in scrapes] == [8, 7, 6, 7, 8]


def test_gpu_added_during_a_run_is_not_counted_and_noted(tmp_path):
    options = ("--simulate", "2xH200", "--no-collector.rapl", "--no-collector.host")
    with (
        daemon(tmp_path, *options, ready=False) as exporter,
        exporter.simulation() as simulation,
    ):
        first, late = (gpu.uuid for gpu in simulation.gpus)
        simulation.set_fault(1, Fault.UNBOUND, on=True)
        eventually(lambda: gpus_up(exporter) == {first}, "one GPU", exporter.log)
        runs = [begin(exporter)["run_id"], begin(exporter, gpus=["0"])["run_id"]]
        simulation.set_fault(1, Fault.UNBOUND, on=False)
        eventually(lambda: gpus_up(exporter) == {first, late}, "two GPUs", exporter.log)
        url = f"/api/v1/runs/{runs[0]}"
        eventually(
            lambda: any(late in note for note in exporter.get(url)[1]["notes"]),
            "a note",
            exporter.log,
        )
        whole_node, one_gpu = (end(exporter, run_id) for run_id in runs)

    assert [gpu["uuid"] for gpu in whole_node["gpus"]] == [first]
    assert [note for note in whole_node["notes"] if late in note] == [
        (
            f"gpu {late}: appeared after the run's start; its energy is not counted; begin another "
            "run "
            "for it"
        )
    ]
    assert not any(late in note for note in one_gpu["notes"])
