"""What happens on the cluster: runs that begin and end, and faults, each at its time."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

from tests.end_to_end.cluster_node import Node, RefusedError
from tests.end_to_end.cluster_runs import Planned, Size, on_two_nodes, planned, special
from tests.end_to_end.cluster_servers import Server

AWAY_S = 120.0
MOST_FAULTY_S = 30.0
_WORKERS = 48

Action = Callable[[], object]


@dataclass(frozen=True, slots=True)
class Faults:
    """When each begins and ends, in seconds of the scene."""

    exporter: tuple[float, float]
    gpu: tuple[float, float]
    prometheus: tuple[float, float]
    victoria_metrics: tuple[float, float]


def faults(seconds: float) -> Faults:
    """For a while both servers are away, as are the exporter and the GPU then."""
    away_s = min(AWAY_S, 0.5 * seconds)
    return Faults(
        exporter=(0.4 * seconds, 0.4 * seconds + min(5.0, 0.1 * seconds)),
        gpu=(0.3 * seconds, 0.3 * seconds + min(MOST_FAULTY_S, 0.2 * seconds)),
        prometheus=(0.1 * seconds, 0.1 * seconds + away_s),
        victoria_metrics=(0.9 * seconds - away_s, 0.9 * seconds),
    )


@dataclass(frozen=True, slots=True)
class Asked:
    """A call of the run API to all nodes of a run: when it was made and when the last had answered, in Unix seconds."""

    from_s: float
    until_s: float


@dataclass(frozen=True, slots=True)
class Tagged:
    plan: Planned
    begun: Asked
    ended: Asked


@dataclass(frozen=True, slots=True)
class Scene:
    """Three nodes at least, with two GPUs at least each."""

    nodes: list[Node]
    prometheus: Server
    victoria_metrics: Server
    size: Size
    say: Callable[[str], None]

    @property
    def servers(self) -> tuple[Server, Server]:
        return self.prometheus, self.victoria_metrics

    def start(self) -> None:
        everything = (*self.nodes, *self.servers)
        for each in everything:
            each.start()
        for each in everything:
            each.until_ready()

    def play(self, chance: random.Random) -> tuple[list[Tagged], list[str]]:
        """The runs that were tagged, and what the exporters refused: a run that begins on a lost GPU alone."""
        begun_s = time.monotonic()
        with ThreadPoolExecutor(_WORKERS) as pool:
            runs = [_Run(plan, self.nodes) for plan in self._plan(chance)]
            events = [*self._faults(), *(event for run in runs for event in run.events())]
            done: list[Future[object]] = []
            for at_s, action in sorted(events, key=lambda event: event[0]):
                time.sleep(max(0.0, begun_s + at_s - time.monotonic()))
                done.append(pool.submit(action))
            for each in done:
                each.result()
        tagged = [Tagged(run.plan, run.begun, run.ended) for run in runs if run.begun and run.ended]
        return tagged, [run.refused for run in runs if run.refused]

    def _plan(self, chance: random.Random) -> Iterator[Planned]:
        """Runs at random, and those that the faults are to befall."""
        hit, whole_s = faults(self.size.seconds), self.size.seconds
        yield from planned(self.size, chance)
        yield on_two_nodes((0, 1), 0.2 * whole_s, 0.5 * whole_s, chance)
        yield special("killed-under", 0, (0, 1), hit.exporter[0] - 0.15 * whole_s, hit.exporter[1] + 0.15 * whole_s)
        yield special("lost-and-back", 1, (0, 1), hit.gpu[0] - 0.1 * whole_s, hit.gpu[1] + 0.2 * whole_s)
        yield special("ended-while-lost", 1, (0, 1), hit.gpu[0] - 0.2 * whole_s, hit.gpu[1] - 0.05 * whole_s)
        yield special("while-both-are-away", 2, (1,), hit.victoria_metrics[0] + 1, hit.prometheus[1] - 1)

    def _faults(self) -> Iterator[tuple[float, Action]]:
        hit, killed, unlucky = faults(self.size.seconds), self.nodes[0], self.nodes[1]
        yield hit.exporter[0], self._said(f"{killed.name}'s exporter is killed", killed.kill)
        yield hit.exporter[1], self._said(f"{killed.name}'s exporter is started again", killed.start)
        yield hit.gpu[0], self._said(f"{unlucky.name} loses GPU 0", lambda: unlucky.lose(0))
        yield hit.gpu[1], self._said(f"{unlucky.name} has GPU 0 again", lambda: unlucky.find(0))
        for server, (from_s, until_s) in zip(self.servers, (hit.prometheus, hit.victoria_metrics), strict=True):
            yield from_s, self._said(f"{server.name} is killed", server.kill)
            yield until_s, self._said(f"{server.name} is started again", server.start)

    def _said(self, text: str, action: Action) -> Action:
        def said() -> None:
            self.say(text)
            action()

        return said

    def until_scraped(self, scrape_s: float) -> None:
        """Until both servers have seen every node once more."""
        now_s = time.time()
        for server in self.servers:
            server.until_ready()
            server.until_scraped({node.target for node in self.nodes}, now_s, 60.0 + 2 * scrape_s)

    def stop_nodes(self) -> None:
        for node in self.nodes:
            node.stop()

    def stop(self) -> None:
        """Whatever still runs."""
        for server in self.servers:
            server.kill()
        self.stop_nodes()


class _Run:
    def __init__(self, plan: Planned, nodes: list[Node]) -> None:
        self.plan = plan
        self._nodes = [nodes[number] for number in plan.nodes]
        self.begun: Asked | None = None
        self.ended: Asked | None = None
        self.refused = ""

    def events(self) -> Iterator[tuple[float, Action]]:
        yield self.plan.begin_s, self._begin
        yield self.plan.end_s, self._end

    def _begin(self) -> None:
        from_s = time.time()
        try:
            for node in self._nodes:
                node.begin(self.plan.body)
        except RefusedError as error:
            self.refused = str(error)
        self.begun = Asked(from_s, time.time())

    def _end(self) -> None:
        while self.begun is None:  # its exporter is away, or slow
            time.sleep(0.05)
        if self.refused:
            return
        from_s = time.time()
        for node in self._nodes:
            node.end(self.plan.run_id)
        self.ended = Asked(from_s, time.time())
