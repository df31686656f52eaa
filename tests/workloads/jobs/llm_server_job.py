"""Process of the job `llm-server`, with its run and its events."""

from __future__ import annotations

import json


class LlmServerJob:
    """Job `llm-server` as a process, with the run and the events that it leaves."""

    def __init__(self, exporter, out):
        self.exporter = exporter
        self.out = out

    def __call__(self, *options, **environment):
        return self.exporter.workloads(
            "job", "llm-server", "--out", str(self.out), *options, **environment
        )

    @property
    def run(self):
        return self.exporter.api.only_run

    @property
    def events(self):
        return [
            json.loads(line)
            for line in next(self.out.glob("*/events.jsonl")).read_text().splitlines()
        ]

    @property
    def iterations(self):
        return [event for event in self.events if event["event"] == "iteration"]
