"""What a node of eight GPUs draws, what its exporter shows of it, and how fast."""

import threading
import time
from statistics import median

import requests

SICK = 3
OTHERS = [i for i in range(8) if i != SICK]
RISING = ("wattline_gpu_energy_joules_total", "wattline_gpu_integrated_energy_joules_total")


def watts(i):
    return 150.0 + 50.0 * i


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


def _read(exporter):
    """The GPUs that are up and whose energy is shown."""
    shown = exporter.metrics()
    up = {labels["uuid"] for labels, value in shown.get("wattline_gpu_up", ()) if value == 1}
    counted = {labels["uuid"] for labels, _ in shown.get(RISING[0], ())}
    return up if up == counted else None
