"""A node of eight GPUs, by the loadable driver library: what befalls one of them, or the driver, harms nothing else."""

import threading
import time
from statistics import median

import pytest
import requests

from exporter.contract.simulation import FILE_NAME, PRODUCTS, Constant, Fault, Simulation, create, make_gpus
from exporter.reading import boottime
from tests.daemon import begin, daemon, end, eventually
from tests.fakes import nvml
from tests.fakes.powercap import Powercap

SICK = 3
OTHERS = [i for i in range(8) if i != SICK]
RISING = ("wattline_gpu_energy_joules_total", "wattline_gpu_integrated_energy_joules_total")


def watts(i):
    return 150.0 + 50.0 * i


@pytest.fixture
def node(tmp_path):
    path = tmp_path / FILE_NAME
    create(path, make_gpus(8, PRODUCTS["H200"]), boottime() - 10)
    with Simulation.open(path) as simulation:
        for i in range(8):
            simulation.set_load(i, Constant(watts(i)), at=boottime() - 9)
        yield simulation
        for i in range(8):
            simulation.set_fault(i, Fault.HANG | Fault.INIT_HANG, on=False)


@pytest.fixture
def serve(tmp_path, node):
    """Exporters on this node, which also has a CPU."""
    tree = Powercap(tmp_path / "sys")
    tree.zone("intel-rapl:0", "package-0", 1_000.0)

    def served(**more):
        environment = nvml.environment(node.path)
        return daemon(tmp_path, "--path.sysfs", str(tree.root), env=environment, **more)

    return served


def ups(exporter):
    return {int(labels["gpu"]): value for labels, value in exporter.metrics().get("wattline_gpu_up", ())}


def rising(exporter):
    return {(name, labels["uuid"]): value for name in RISING for labels, value in exporter.metrics().get(name, ())}


def is_rising(looks):
    """Whether no counter is lower than when it was last seen, be it away in between."""
    highest = {}
    for look in looks:
        if any(value < highest.get(series, 0.0) for series, value in look.items()):
            return False
        highest |= look
    return True


def untrue(run, node, of=range(8)):
    """The GPUs whose interval does not hold the truth: joules, its ±, and the truth."""
    found = {}
    for i in of:
        uuid, truth_j = node.gpus[i].uuid, watts(i) * run["duration_seconds"]
        joules, plus_minus_j = run["energy_joules"]["gpu"][uuid], run["energy_uncertainty_joules"]["gpu"][uuid]
        if abs(joules - truth_j) > plus_minus_j:
            found[i] = (joules, plus_minus_j, truth_j)
    return found


def covered(run, node, i):
    return run["covered_ratio"]["gpu"][node.gpus[i].uuid]


def reads(exporter):
    """Good reads of each source so far, and when."""
    counted = exporter.metrics()["wattline_source_reads_total"]
    return {labels["source"]: value for labels, value in counted if labels["outcome"] == "ok"}, time.monotonic()


def reads_a_second(before, after):
    return {source: (after[0][source] - before[0][source]) / (after[1] - before[1]) for source in after[0]}


class Scraper:
    """Scrapes 20 times a second, beside the test; `took_s` is what each scrape took."""

    def __init__(self, exporter):
        self.took_s = []
        self._url = f"{exporter.url}/metrics"
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._scrape)

    def _scrape(self):
        with requests.Session() as session:
            while not self._ended.wait(0.05):
                begun_s = time.monotonic()
                assert session.get(self._url, timeout=30).status_code == 200
                self.took_s.append(time.monotonic() - begun_s)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._ended.set()
        self._thread.join()

    def is_prompt(self):
        print(f"{len(self.took_s)} scrapes, median {median(self.took_s):.4f} s, slowest {max(self.took_s):.3f} s")
        return len(self.took_s) > 20 and median(self.took_s) < 0.05 and max(self.took_s) < 1.0


# -- 1: a driver call that hangs


def test_while_one_of_eight_hangs_all_else_goes_on_at_its_rate_and_it_is_taken_back(node, serve):
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


def test_a_gpu_that_hangs_for_ever_does_not_keep_the_exporter_from_ending(node, serve):
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


def test_an_init_that_hangs_holds_up_nothing_else_and_ends_with_the_exporter(node, serve):
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


def test_gpus_whose_init_hung_are_there_once_it_returns(node, serve):
    node.set_fault(SICK, Fault.INIT_HANG, on=True)
    with serve() as exporter:
        assert ups(exporter) == {}
        node.set_fault(SICK, Fault.INIT_HANG, on=False)
        eventually(lambda: ups(exporter) == dict.fromkeys(range(8), 1.0), "all eight", exporter.log)


def test_a_sampler_that_is_replaced_while_init_hangs_is_waited_for(node, serve):
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


# -- 2: one falls off the bus


@pytest.mark.parametrize("reload", [False, True], ids=["the card alone is reset", "the driver is loaded anew"])
def test_one_of_eight_falls_off_the_bus_and_comes_back_with_its_counter_at_zero(node, serve, reload):
    with serve() as exporter:
        run_id = begin(exporter)["run_id"]
        time.sleep(2.0)
        looks = [rising(exporter)]
        node.set_fault(SICK, Fault.LOST, on=True)
        exporter.wait_for_metric(lambda up: up == 0, "wattline_gpu_up", gpu=str(SICK))
        assert ups(exporter) == {i: float(i != SICK) for i in range(8)}
        looks.append(rising(exporter))
        if reload:
            node.unload_driver()
            eventually(lambda: set(ups(exporter).values()) == {0.0}, "all are down", exporter.log)
            node.set_fault(SICK, Fault.LOST, on=False)
            node.load_driver()
        else:
            node.jump_counter(SICK, -node.counter_j(SICK, boottime()))
            node.set_fault(SICK, Fault.LOST, on=False)
        eventually(lambda: ups(exporter) == dict.fromkeys(range(8), 1.0), "all eight", exporter.log)
        for _ in range(3):
            looks.append(rising(exporter))
            time.sleep(0.5)
        run = end(exporter, run_id)

    assert is_rising(looks)
    seven = {uuid for _, uuid in looks[1]}
    assert seven == {node.gpus[i].uuid for i in OTHERS}
    assert untrue(run, node) == {}
    assert run["energy_joules"]["gpu"][node.gpus[SICK].uuid] <= watts(SICK) * run["duration_seconds"] * 1.01
    assert any("started anew" in note and node.gpus[SICK].uuid in note for note in run["notes"])
    if not reload:
        assert all(covered(run, node, i) > 0.95 for i in OTHERS)
        assert not any("started anew" in note and node.gpus[i].uuid in note for note in run["notes"] for i in OTHERS)


# -- 3: the driver comes and goes, and GPUs with it


def test_no_process_stays_in_a_driver_that_is_to_be_replaced(node, serve):
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


def test_gpus_that_are_bound_elsewhere_or_come_back_are_followed(tmp_path):
    options = ("--simulate", "8xH200", "--no-collector.rapl", "--no-collector.host")
    with daemon(tmp_path, *options) as exporter, exporter.simulation() as simulation:
        uuids = [gpu.uuid for gpu in simulation.gpus]
        looks = [rising(exporter)]
        for given_away in ([7], [0, 7], [0], []):
            for i in range(8):
                simulation.set_fault(i, Fault.UNBOUND, on=i in given_away)
            kept = {uuid for i, uuid in enumerate(uuids) if i not in given_away}
            eventually(lambda kept=kept: _read(exporter) == kept, f"all but {given_away}", exporter.log)
            looks.append(rising(exporter))

    assert is_rising(looks)
    assert [len(look) // 2 for look in looks] == [8, 7, 6, 7, 8]


def test_a_gpu_that_comes_to_the_node_during_a_run_is_not_the_runs_and_the_run_says_so(tmp_path):
    options = ("--simulate", "2xH200", "--no-collector.rapl", "--no-collector.host")
    with daemon(tmp_path, *options, ready=False) as exporter, exporter.simulation() as simulation:
        first, late = (gpu.uuid for gpu in simulation.gpus)
        simulation.set_fault(1, Fault.UNBOUND, on=True)
        eventually(lambda: _read(exporter) == {first}, "one GPU", exporter.log)
        runs = [begin(exporter)["run_id"], begin(exporter, gpus=["0"])["run_id"]]
        simulation.set_fault(1, Fault.UNBOUND, on=False)
        eventually(lambda: _read(exporter) == {first, late}, "two GPUs", exporter.log)
        url = f"/api/v1/runs/{runs[0]}"
        eventually(lambda: any(late in note for note in exporter.get(url)[1]["notes"]), "a note", exporter.log)
        whole_node, one_gpu = (end(exporter, run_id) for run_id in runs)

    assert [gpu["uuid"] for gpu in whole_node["gpus"]] == [first]
    assert [note for note in whole_node["notes"] if late in note] == [
        f"gpu {late} came after the run's begin: its energy is not counted; begin another run for it"
    ]
    assert not any(late in note for note in one_gpu["notes"])


def _read(exporter):
    """The GPUs that are up and whose energy is shown."""
    shown = exporter.metrics()
    up = {labels["uuid"] for labels, value in shown.get("wattline_gpu_up", ()) if value == 1}
    counted = {labels["uuid"] for labels, _ in shown.get(RISING[0], ())}
    return up if up == counted else None
