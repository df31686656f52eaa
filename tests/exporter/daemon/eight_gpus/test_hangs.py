"""Hanging calls of one GPU or of the whole driver."""

import time
from functools import partial

from tests.daemon import begin, end
from tests.exporter.daemon.eight_gpus.observation import (
    FAULTY,
    OTHERS,
    Scraper,
    counters,
    covered,
    is_monotonic,
    reads_a_second,
    successful_reads,
    up_by_gpu,
    wait_for_rates,
    wrong_intervals,
)
from tests.polling import eventually
from wattline_exporter.simulation import Fault


def test_one_of_eight_hanging_others_keep_rate_and_it_recovers(node, serve):
    with serve() as exporter:
        run_id = begin(exporter)["run_id"]
        time.sleep(1.0)
        first = successful_reads(exporter)
        time.sleep(3.0)
        healthy_rates = reads_a_second(first, successful_reads(exporter))
        node.set_fault(FAULTY, Fault.HANG, on=True)
        with Scraper(exporter) as scraper:
            is_up = partial(exporter.value, "wattline_gpu_up", gpu=str(FAULTY))
            eventually(lambda: is_up() == 0, "the GPU is down", exporter.log, within_s=20.0)
            metrics = exporter.metrics()
            wait_for_rates(
                exporter,
                lambda rates: (
                    rates["nvml"] / 7 > 0.8 * healthy_rates["nvml"] / 8 and rates["rapl"] > 0.7
                ),
            )
            scraper.wait_until_prompt()
        names_of_faulty = [
            name
            for name, samples in metrics.items()
            for labels, _ in samples
            if labels.get("gpu") == str(FAULTY)
        ]
        node.set_fault(FAULTY, Fault.HANG, on=False)
        exporter.wait_for_metric(lambda up: up == 1, "wattline_gpu_up", gpu=str(FAULTY))
        time.sleep(0.5)
        run = end(exporter, run_id)
        restarts = exporter.value("wattline_source_restarts_total", source="nvml")

    assert [name for name in names_of_faulty if not name.startswith("wattline_run_")] == [
        "wattline_gpu_up"
    ]
    assert wrong_intervals(run, node) == {}
    assert all(covered(run, node, i) > 0.9 for i in OTHERS)
    assert covered(run, node, FAULTY) < 0.9
    assert restarts == 0


def test_gpu_hanging_for_ever_does_not_block_the_stop(node, serve):
    with serve() as exporter:
        run_id = begin(exporter)["run_id"]
        node.set_fault(FAULTY, Fault.HANG, on=True)
        exporter.wait_for_metric(lambda up: up == 0, "wattline_gpu_up", gpu=str(FAULTY))
        ended = end(exporter, run_id)
        stop_s = time.monotonic()
        assert exporter.stop() == 0  # asserts that no process is left
        print(f"ended in {time.monotonic() - stop_s:.2f} s")

    assert any(
        "energy after that is missing" in note and node.gpus[FAULTY].uuid in note
        for note in ended["notes"]
    )
    assert wrong_intervals(ended, node, OTHERS) == {}


def test_hanging_init_delays_nothing_and_ends_with_the_exporter(node, serve):
    node.set_fault(FAULTY, Fault.INIT_HANG, on=True)
    with serve() as exporter, Scraper(exporter) as scraper:
        exporter.wait_for_metric(lambda up: up == 1, "wattline_source_up", source="rapl")
        eventually(
            lambda: "source=nvml has not answered" in exporter.log(), "a log message", exporter.log
        )
        time.sleep(1.5)
        assert exporter.log().count("source=nvml") == 1
        assert exporter.value("wattline_source_up", source="nvml") == 0
        assert up_by_gpu(exporter) == {}
        assert end(exporter, begin(exporter)["run_id"])["gpus"] == []
        scraper.wait_until_prompt()
    assert exporter.process.returncode == 0


def test_gpus_appear_once_a_hanging_init_returns(node, serve):
    node.set_fault(FAULTY, Fault.INIT_HANG, on=True)
    with serve() as exporter:
        assert up_by_gpu(exporter) == {}
        node.set_fault(FAULTY, Fault.INIT_HANG, on=False)
        eventually(
            lambda: up_by_gpu(exporter) == dict.fromkeys(range(8), 1.0), "all eight", exporter.log
        )


def test_worker_replaced_during_hanging_init_is_waited_for(node, serve):
    """The worker dies while a GPU and the driver's init hang: no GPU is exported as if it were
    read.
    """
    with serve() as exporter:
        before = counters(exporter)
        node.set_fault(FAULTY, Fault.HANG | Fault.INIT_HANG, on=True)
        (child,) = exporter.children()
        child.kill()
        eventually(lambda: set(up_by_gpu(exporter).values()) == {0.0}, "all are down", exporter.log)
        eventually(lambda: bool(exporter.children()), "a new sampler", exporter.log)
        exporter.wait_for_metric(lambda up: up == 0, "wattline_source_up", source="nvml")
        assert counters(exporter) == {}
        node.set_fault(FAULTY, Fault.HANG | Fault.INIT_HANG, on=False)
        eventually(
            lambda: up_by_gpu(exporter) == dict.fromkeys(range(8), 1.0), "all eight", exporter.log
        )
        assert is_monotonic([before, counters(exporter)])


def test_worker_leaves_a_driver_that_is_replaced(node, serve):
    node.unload_driver()
    with serve() as exporter:
        assert exporter.log().count("source=nvml down") == 1
        assert "nvidia-modprobe" in exporter.log()
        eventually(lambda: not exporter.children(), "no process holds the driver", exporter.log)
        node.load_driver()
        eventually(
            lambda: up_by_gpu(exporter) == dict.fromkeys(range(8), 1.0), "all eight", exporter.log
        )
        before = counters(exporter)
        run_id = begin(exporter)["run_id"]
        time.sleep(1.0)
        node.unload_driver()
        eventually(lambda: set(up_by_gpu(exporter).values()) == {0.0}, "all are down", exporter.log)
        eventually(lambda: not exporter.children(), "no process holds the driver", exporter.log)
        assert counters(exporter) == {}
        node.load_driver()
        eventually(
            lambda: up_by_gpu(exporter) == dict.fromkeys(range(8), 1.0), "all eight", exporter.log
        )
        time.sleep(0.5)
        after = counters(exporter)
        run = end(exporter, run_id)

    assert is_monotonic([before, after])
    assert wrong_intervals(run, node) == {}
    assert exporter.log().count("source=nvml down") == 2
