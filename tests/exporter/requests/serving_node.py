"""Node with a server of requests in virtual time, whose power is known at each instant."""

from __future__ import annotations

import math

from tests.exporter.runs.ledger_node import GPU, LedgerNode
from wattline.contract.requests.served import ServedRequest
from wattline_exporter.config.request_options import RequestSettings
from wattline_exporter.requests.service import RequestService
from wattline_exporter.requests.store import RequestStore
from wattline_exporter.storage.state_file import StateFile

IDLE_W = 60.0


class ServingNode:
    """A node with a server: 60 W without requests, and 40 W for each request in progress."""

    def __init__(self, folder, **settings) -> None:
        self.file = StateFile(folder)
        self.node = LedgerNode(self.file)
        self.node.power_w = IDLE_W
        self.node.run_for(20)
        self.run = self.node.begin(run_id="server", gpus=[GPU.id])
        self.store = RequestStore(folder)
        self.service = RequestService(
            self, self.node.live, self.store, RequestSettings(**settings), self.node.now
        )
        self.number, self.running = 0, []

    def close(self):
        self.store.close()
        self.file.close()

    def devices_of(self, run_id):
        return self.node.service.devices_of(run_id)

    def note(self, run_id, text):
        self.node.service.note(run_id, text)

    def others_on_gpus(self, run_id, since_s):
        return self.node.service.others_on_gpus(run_id, since_s)

    def idle_w(self, _):
        return IDLE_W

    def gpu_periods(self, device, since_s, reporters):
        return self.node.service.gpu_periods(device, since_s, reporters)

    async def serve(self, seconds, rng, rate=0.5, every_s=0.25, role=None):
        """Serve requests in steps of 0.25 s; report them every `every_s`, and tick each second."""
        running = self.running
        sent = []
        waiting = []
        for step in range(round(seconds * 4)):
            if rng.random() < rate / 4:
                running.append([self.node.now().at, rng.integers(2, 30)])
            self.node.power_w = IDLE_W + 40.0 * len(running)
            self.node.run_for(0.25)
            now_at = self.node.now().at
            for each in running:
                each[1] -= 1
            ended = [each for each in running if each[1] == 0]
            running[:] = [each for each in running if each[1] > 0]
            for started_at, _ in ended:
                self.number += 1
                made = int((now_at - started_at) * 40)
                sent.append(
                    ServedRequest(
                        *(f"r-{self.number}", started_at, now_at, 50, made, started_at + 0.05),
                        role=role,
                    )
                )
                waiting.append(sent[-1])
            if waiting and (step + 1) % (every_s * 4) == 0:
                await self.service.report("server", waiting)
                waiting = []
            if step % 4 == 0:
                await self.service.tick()
        return sent

    def readings(self):
        """Return the metrics a long time after the labels were new."""
        return [
            *self.service._counters.readings(math.inf),
            *self.service._servers.readings(self.node.now()),
        ]

    def values(self):
        return {
            (reading.metric.name, *reading.labels): reading.value for reading in self.readings()
        }
