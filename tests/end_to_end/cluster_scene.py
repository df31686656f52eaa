"""Scene on the cluster: runs and faults on a timeline."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

from tests.end_to_end.cluster_node import Node, RefusedError
from tests.end_to_end.cluster_runs import PlannedRun, Size, fault_run, random_runs, two_node_run
from tests.end_to_end.cluster_servers import Server

AWAY_S = 120.0
MOST_FAULTY_S = 30.0
_WORKERS = 48

Action = Callable[[], object]


@dataclass(frozen=True, slots=True)
class Faults:
    """Start and end of each fault, in seconds of the scene."""

    exporter: tuple[float, float]
    gpu: tuple[float, float]
    prometheus: tuple[float, float]
    victoria_metrics: tuple[float, float]


def faults(seconds: float) -> Faults:
    """Return faults in which for some time both servers, an exporter and a GPU fail together."""
    away_s = min(AWAY_S, 0.5 * seconds)
    return Faults(
        exporter=(0.4 * seconds, 0.4 * seconds + min(5.0, 0.1 * seconds)),
        gpu=(0.3 * seconds, 0.3 * seconds + min(MOST_FAULTY_S, 0.2 * seconds)),
        prometheus=(0.1 * seconds, 0.1 * seconds + away_s),
        victoria_metrics=(0.9 * seconds - away_s, 0.9 * seconds),
    )


@dataclass(frozen=True, slots=True)
class ApiCall:
    """Unix times at which a call to all nodes of a run was made and answered."""

    from_s: float
    until_s: float


@dataclass(frozen=True, slots=True)
class StartedRun:
    plan: PlannedRun
    begun: ApiCall
    ended: ApiCall


@dataclass(frozen=True, slots=True)
class Scene:
    """Cluster of at least three nodes with at least two GPUs each."""

    nodes: list[Node]
    prometheus: Server
    victoria_metrics: Server
    size: Size
    log: Callable[[str], None]

    @property
    def servers(self) -> tuple[Server, Server]:
        return self.prometheus, self.victoria_metrics

    def start(self) -> None:
        everything: list[Node | Server] = [*self.nodes, *self.servers]
        for each in everything:
            each.start()
        for each in everything:
            each.until_ready()

    def play(self, chance: random.Random) -> tuple[list[StartedRun], list[str]]:
        """Return the runs and the requests that exporters rejected (a run that starts on a lost GPU
        only).
        """
        begun_s = time.monotonic()
        with ThreadPoolExecutor(_WORKERS) as pool:
            runs = [_Run(plan, self.nodes) for plan in self._plan(chance)]
            events = [*self._faults(), *(event for run in runs for event in run.events())]
            futures: list[Future[object]] = []
            for at_s, action in sorted(events, key=lambda event: event[0]):
                time.sleep(max(0.0, begun_s + at_s - time.monotonic()))
                futures.append(pool.submit(action))
            for each in futures:
                each.result()
        started_runs = [
            StartedRun(run.plan, run.begun, run.ended) for run in runs if run.begun and run.ended
        ]
        return started_runs, [run.refused for run in runs if run.refused]

    def _plan(self, chance: random.Random) -> Iterator[PlannedRun]:
        """Return random runs and the runs that the faults affect."""
        fault_times, length_s = faults(self.size.seconds), self.size.seconds
        yield from random_runs(self.size, chance)
        yield two_node_run((0, 1), 0.2 * length_s, 0.5 * length_s, chance)
        yield fault_run(
            "killed-under",
            0,
            (0, 1),
            fault_times.exporter[0] - 0.15 * length_s,
            fault_times.exporter[1] + 0.15 * length_s,
        )
        yield fault_run(
            "lost-and-back",
            1,
            (0, 1),
            fault_times.gpu[0] - 0.1 * length_s,
            fault_times.gpu[1] + 0.2 * length_s,
        )
        yield fault_run(
            "ended-while-lost",
            1,
            (0, 1),
            fault_times.gpu[0] - 0.2 * length_s,
            fault_times.gpu[1] - 0.05 * length_s,
        )
        yield fault_run(
            "while-both-are-away",
            2,
            (1,),
            fault_times.victoria_metrics[0] + 1,
            fault_times.prometheus[1] - 1,
        )

    def _faults(self) -> Iterator[tuple[float, Action]]:
        fault_times, killed, unlucky = faults(self.size.seconds), self.nodes[0], self.nodes[1]
        yield (
            fault_times.exporter[0],
            self._logged(f"{killed.name}'s exporter is killed", killed.kill),
        )
        yield (
            fault_times.exporter[1],
            self._logged(f"{killed.name}'s exporter is started again", killed.start),
        )
        yield (
            fault_times.gpu[0],
            self._logged(f"{unlucky.name} loses GPU 0", lambda: unlucky.lose(0)),
        )
        yield (
            fault_times.gpu[1],
            self._logged(f"{unlucky.name} has GPU 0 again", lambda: unlucky.find(0)),
        )
        for server, (from_s, until_s) in zip(
            self.servers, (fault_times.prometheus, fault_times.victoria_metrics), strict=True
        ):
            yield from_s, self._logged(f"{server.name} is killed", server.kill)
            yield until_s, self._logged(f"{server.name} is started again", server.start)

    def _logged(self, text: str, action: Action) -> Action:
        def logged_action() -> None:
            self.log(text)
            action()

        return logged_action

    def until_scraped(self, scrape_s: float) -> None:
        """Wait until both servers have scraped every node again."""
        now_s = time.time()
        for server in self.servers:
            server.until_ready()
            server.until_scraped({node.target for node in self.nodes}, now_s, 60.0 + 2 * scrape_s)

    def stop_nodes(self) -> None:
        for node in self.nodes:
            node.stop()

    def stop(self) -> None:
        """Stop the processes that still run."""
        for server in self.servers:
            server.kill()
        self.stop_nodes()


class _Run:
    def __init__(self, plan: PlannedRun, nodes: list[Node]) -> None:
        self.plan = plan
        self._nodes = [nodes[number] for number in plan.nodes]
        self.begun: ApiCall | None = None
        self.ended: ApiCall | None = None
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
        self.begun = ApiCall(from_s, time.time())

    def _end(self) -> None:
        while self.begun is None:  # its exporter is down or slow
            time.sleep(0.05)
        if self.refused:
            return
        from_s = time.time()
        for node in self._nodes:
            node.end(self.plan.run_id)
        self.ended = ApiCall(from_s, time.time())
