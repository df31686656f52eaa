"""Loads, metrics, intervals and scrape times of a node with eight GPUs."""

import threading
import time
from statistics import median

import requests

from tests.polling import eventually

FAULTY = 3
OTHERS = [i for i in range(8) if i != FAULTY]
COUNTERS = ("wattline_gpu_energy_joules_total", "wattline_gpu_integrated_energy_joules_total")


def load_w(i):
    return 150.0 + 50.0 * i


def up_by_gpu(exporter):
    return {
        int(labels["gpu"]): value for labels, value in exporter.metrics().get("wattline_gpu_up", ())
    }


def counters(exporter):
    return {
        (name, labels["uuid"]): value
        for name in COUNTERS
        for labels, value in exporter.metrics().get(name, ())
    }


def is_monotonic(scrapes):
    """Return True if no counter is lower than in an earlier scrape, even if absent in between."""
    highest = {}
    for scrape in scrapes:
        if any(value < highest.get(series, 0.0) for series, value in scrape.items()):
            return False
        highest |= scrape
    return True


def wrong_intervals(run, node, of=range(8)):
    """Return GPUs whose interval does not contain the true energy: joules, half-width, true
    joules.
    """
    wrong = {}
    for i in of:
        uuid, true_j = node.gpus[i].uuid, load_w(i) * run["duration_seconds"]
        joules, plus_minus_j = (
            run["energy_joules"]["gpu"][uuid],
            run["energy_uncertainty_joules"]["gpu"][uuid],
        )
        if abs(joules - true_j) > plus_minus_j:
            wrong[i] = (joules, plus_minus_j, true_j)
    return wrong


def covered(run, node, i):
    return run["covered_ratio"]["gpu"][node.gpus[i].uuid]


def successful_reads(exporter):
    """Return the number of successful reads of each source, and the time."""
    samples = exporter.metrics()["wattline_source_reads_total"]
    return {
        labels["source"]: value for labels, value in samples if labels["outcome"] == "ok"
    }, time.monotonic()


def reads_a_second(before, after):
    return {
        source: (after[0][source] - before[0][source]) / (after[1] - before[1])
        for source in after[0]
    }


def wait_for_rates(exporter, is_high_enough):
    """Wait until the rates of four seconds are high enough: on a busy host, some seconds have fewer
    reads.
    """

    def rates():
        before = successful_reads(exporter)
        time.sleep(4.0)
        return reads_a_second(before, successful_reads(exporter))

    eventually(lambda: is_high_enough(rates()), "the rates of the sources", exporter.log)


class Scraper:
    """Client that scrapes 20 times a second in a thread; `took_s` are the durations."""

    def __init__(self, exporter):
        self.took_s = []
        self._url = f"{exporter.url}/metrics"
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._scrape)

    def _scrape(self):
        with requests.Session() as session:
            while not self._ended.wait(0.05):
                started_s = time.monotonic()
                assert session.get(self._url, timeout=30).status_code == 200
                self.took_s.append(time.monotonic() - started_s)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._ended.set()
        self._thread.join()

    def wait_until_prompt(self):
        """Wait for 21 successive scrapes that are prompt: on a busy host, some are late."""

        def is_prompt():
            last_s = self.took_s[-21:]
            return len(last_s) > 20 and median(last_s) < 0.05 and max(last_s) < 1.0

        eventually(is_prompt, "prompt scrapes", lambda: str(self.took_s))


def gpus_up(exporter):
    """Return the UUIDs of GPUs that are up, or None if energy is exported for others."""
    metrics = exporter.metrics()
    up = {labels["uuid"] for labels, value in metrics.get("wattline_gpu_up", ()) if value == 1}
    samples = {labels["uuid"] for labels, _ in metrics.get(COUNTERS[0], ())}
    return up if up == samples else None
