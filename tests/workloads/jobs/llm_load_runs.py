"""The job `llm-server` at work, and what is known of it afterwards."""

from __future__ import annotations

import json


class Load:
    """The job at a server that answers by `script`, and all that is known of it afterwards."""

    def __init__(self, exporter, out):
        self.exporter = exporter
        self.out = out

    def __call__(self, *options, **environment):
        return self.exporter.workloads("job", "llm-server", "--out", str(self.out), *options, **environment)

    @property
    def run(self):
        return self.exporter.api.only_run

    @property
    def events(self):
        return [json.loads(line) for line in next(self.out.glob("*/events.jsonl")).read_text().splitlines()]

    @property
    def iterations(self):
        return [event for event in self.events if event["event"] == "iteration"]
