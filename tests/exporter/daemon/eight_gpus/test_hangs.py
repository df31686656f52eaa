"""A call of one GPU's, or the driver's own, that does not return harms nothing else."""

import time

from exporter.simulation import Fault
from tests.daemon import begin, end, eventually
from tests.exporter.daemon.eight_gpus.observation import (
    OTHERS,
    SICK,
    Scraper,
    covered,
    is_rising,
    reads,
    reads_a_second,
    rising,
    untrue,
    ups,
)


def test_one_of_eight_hanging_others_keep_rate_and_it_recovers(node, serve):
    with serve() as exporter:
        run_id = begin(exporter)["run_id"]
        time.sleep(1.0)
        first = reads(exporter)
        time.sleep(3.0)
        well = reads_a_second(first, reads(exporter))
        node.set_fault(SICK, Fault.HANG, on=True)
        hung_s = time.monotonic()
        with Scraper(exporter) as scraper:
            exporter.wait_for_metric(lambda up: up == 0, "wattline_gpu_up", gpu=str(SICK))
            print(f"vanished after {time.monotonic() - hung_s:.2f} s")
            assert time.monotonic() - hung_s < 5.0
            shown = exporter.metrics()
            before = reads(exporter)
            time.sleep(4.0)
            sick = reads_a_second(before, reads(exporter))
        of_sick = [name for name, samples in shown.items() for labels, _ in samples if labels.get("gpu") == str(SICK)]
        node.set_fault(SICK, Fault.HANG, on=False)
        exporter.wait_for_metric(lambda up: up == 1, "wattline_gpu_up", gpu=str(SICK))
        time.sleep(0.5)
        run = end(exporter, run_id)
        restarts = exporter.value("wattline_source_restarts_total", source="nvml")

    assert [name for name in of_sick if not name.startswith("wattline_run_")] == ["wattline_gpu_up"]
    assert sick["nvml"] / 7 > 0.8 * well["nvml"] / 8, (well, sick)
    assert sick["rapl"] > 0.7, sick
    assert scraper.is_prompt()
    assert untrue(run, node) == {}
    assert all(covered(run, node, i) > 0.9 for i in OTHERS)
    assert covered(run, node, SICK) < 0.9
    assert restarts == 0


def test_gpu_hanging_for_ever_does_not_block_the_stop(node, serve):
    with serve() as exporter:
        run_id = begin(exporter)["run_id"]
        node.set_fault(SICK, Fault.HANG, on=True)
        exporter.wait_for_metric(lambda up: up == 0, "wattline_gpu_up", gpu=str(SICK))
        ended = end(exporter, run_id)
        asked_s = time.monotonic()
        assert exporter.stop() == 0  # and no process is left
        print(f"ended in {time.monotonic() - asked_s:.2f} s")

    assert any("energy after that is missing" in note and node.gpus[SICK].uuid in note for note in ended["notes"])
    assert untrue(ended, node, OTHERS) == {}


def test_hanging_init_delays_nothing_and_ends_with_the_exporter(node, serve):
    node.set_fault(SICK, Fault.INIT_HANG, on=True)
    with serve() as exporter, Scraper(exporter) as scraper:
        exporter.wait_for_metric(lambda up: up == 1, "wattline_source_up", source="rapl")
        eventually(lambda: "source=nvml has not answered" in exporter.log(), "it is said", exporter.log)
        time.sleep(1.5)
        assert exporter.log().count("source=nvml") == 1
        assert exporter.value("wattline_source_up", source="nvml") == 0
        assert ups(exporter) == {}
        assert end(exporter, begin(exporter)["run_id"])["gpus"] == []
    assert exporter.process.returncode == 0
    assert scraper.is_prompt()


def test_gpus_appear_once_a_hanging_init_returns(node, serve):
    node.set_fault(SICK, Fault.INIT_HANG, on=True)
    with serve() as exporter:
        assert ups(exporter) == {}
        node.set_fault(SICK, Fault.INIT_HANG, on=False)
        eventually(lambda: ups(exporter) == dict.fromkeys(range(8), 1.0), "all eight", exporter.log)


def test_worker_replaced_during_hanging_init_is_waited_for(node, serve):
    """A GPU hangs for ever, init with it, and the process that had them open dies: none is shown as if it were read."""
    with serve() as exporter:
        before = rising(exporter)
        node.set_fault(SICK, Fault.HANG | Fault.INIT_HANG, on=True)
        (child,) = exporter.children()
        child.kill()
        eventually(lambda: set(ups(exporter).values()) == {0.0}, "all are down", exporter.log)
        eventually(lambda: bool(exporter.children()), "a new sampler", exporter.log)
        exporter.wait_for_metric(lambda up: up == 0, "wattline_source_up", source="nvml")
        assert rising(exporter) == {}
        node.set_fault(SICK, Fault.HANG | Fault.INIT_HANG, on=False)
        eventually(lambda: ups(exporter) == dict.fromkeys(range(8), 1.0), "all eight", exporter.log)
        assert is_rising([before, rising(exporter)])


def test_worker_leaves_a_driver_that_is_replaced(node, serve):
    node.unload_driver()
    with serve() as exporter:
        assert exporter.log().count("source=nvml down") == 1
        assert "nvidia-modprobe" in exporter.log()
        eventually(lambda: not exporter.children(), "it holds no handle", exporter.log)
        node.load_driver()
        eventually(lambda: ups(exporter) == dict.fromkeys(range(8), 1.0), "all eight", exporter.log)
        before = rising(exporter)
        run_id = begin(exporter)["run_id"]
        time.sleep(1.0)
        node.unload_driver()
        eventually(lambda: set(ups(exporter).values()) == {0.0}, "all are down", exporter.log)
        eventually(lambda: not exporter.children(), "it holds no handle", exporter.log)
        assert rising(exporter) == {}
        node.load_driver()
        eventually(lambda: ups(exporter) == dict.fromkeys(range(8), 1.0), "all eight", exporter.log)
        time.sleep(0.5)
        after = rising(exporter)
        run = end(exporter, run_id)

    assert is_rising([before, after])
    assert untrue(run, node) == {}
    assert exporter.log().count("source=nvml down") == 2
