"""Scrapes as Prometheus makes them: persistent connection, whole body read."""

from __future__ import annotations

import gzip
import http.client
import random
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

TEXT = "text/plain;version=0.0.4;q=1"
OPENMETRICS = "application/openmetrics-text;version=1.0.0;q=1"
APART_S = (0.14, 0.22)
"""Pause between two scrapes, alternating between servers: no rendering of Wattline serves two
scrapes.
"""


@dataclass(frozen=True, slots=True)
class Form:
    name: str
    accept: str
    encoding: str


FORMS = (
    Form("text", TEXT, "identity"),
    Form("text, gzip", TEXT, "gzip"),
    Form("OpenMetrics", OPENMETRICS, "identity"),
    Form("OpenMetrics, gzip", OPENMETRICS, "gzip"),
)


@dataclass(frozen=True, slots=True)
class Scrape:
    seconds: float
    samples: int


class Scraper:
    def __init__(self, port: int) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)

    def scrape(self, form: Form) -> Scrape:
        headers = {"Accept": form.accept, "Accept-Encoding": form.encoding}
        begin_s = time.perf_counter()
        self._connection.request("GET", "/metrics", headers=headers)
        response = self._connection.getresponse()
        body = response.read()
        seconds = time.perf_counter() - begin_s
        if response.status != http.client.OK:
            raise http.client.HTTPException(f"the scrape was answered with {response.status}")
        if response.getheader("Content-Encoding") == "gzip":
            body = gzip.decompress(body)
        return Scrape(
            seconds, sum(1 for line in body.splitlines() if line and not line.startswith(b"#"))
        )

    def close(self) -> None:
        self._connection.close()


Scrapes = dict[tuple[str, str], list[Scrape]]
"""Scrapes by server and form."""


def one_scraper(
    ports: Mapping[str, int], rounds: int, pause: Callable[[float], object], chance: random.Random
) -> Scrapes:
    """Scrape every form of every server in turn, one at a time."""
    scrapers = {server: Scraper(port) for server, port in ports.items()}
    found: Scrapes = {(server, form.name): [] for server in ports for form in FORMS}
    for _ in range(rounds):
        for form in FORMS:
            for server, scraper in scrapers.items():
                pause(chance.uniform(*APART_S) * (2 if len(ports) == 1 else 1))
                found[server, form.name].append(scraper.scrape(form))
    for scraper in scrapers.values():
        scraper.close()
    return found


def two_scrapers(
    ports: Mapping[str, int], rounds: int, pause: Callable[[float], object], chance: random.Random
) -> Scrapes:
    """Scrape twice at once, as text and as OpenMetrics, so that no rendering is shared."""
    forms = (FORMS[1], FORMS[3])
    found: Scrapes = {(server, form.name): [] for server in ports for form in forms}
    scrapers = {(server, form): Scraper(port) for server, port in ports.items() for form in forms}
    for _ in range(rounds):
        for server in ports:
            pause(chance.uniform(*APART_S) * (2 if len(ports) == 1 else 1))
            start = threading.Barrier(len(forms))
            threads = [
                threading.Thread(
                    target=_scrape_at_once,
                    args=(scrapers[server, form], form, start, found[server, form.name]),
                )
                for form in forms
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
    for scraper in scrapers.values():
        scraper.close()
    return found


def _scrape_at_once(
    scraper: Scraper, form: Form, start: threading.Barrier, into: list[Scrape]
) -> None:
    start.wait()
    into.append(scraper.scrape(form))
