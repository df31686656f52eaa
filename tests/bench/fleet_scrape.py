"""Fleet of 200 nodes with 1,600 GPUs and 100,000 runs a day, scraped by a real Prometheus with the
rules and alerts.

`python -m tests.bench.fleet_scrape --minutes 20` serves the pages in real time, with runs at the
rate of a day, and prints series, samples, times of the rules, and times and sizes of the panels of
three dashboards.
"""

from __future__ import annotations

import argparse
import json
import re
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from grafana import pictures
from tests import servers
from tests.daemon import begin, daemon, end
from tests.exporter.web.series_counts import (
    DAY_S,
    GPUS,
    NODES,
    OPTIONS,
    OWNERS,
    RUNS_A_DAY,
    SCRAPE_S,
)
from wattline.contract import metrics as m

TAIL_S = 600.0
RUN_S = NODES * GPUS / RUNS_A_DAY * DAY_S
"""Duration of a run if a run is on each GPU at any time."""
POWER_W = 400.0
BOARDS = ("wattline-overview", "wattline-waste", "wattline-runs")
_RULES = Path(__file__).parents[2] / "deploy" / "prometheus"
_SHOWN_S = 900
STEADY_S = 300
"""Last part of the time, in which series and samples are counted."""


@dataclass(frozen=True, slots=True)
class Line:
    """Series of a page: text up to its value, first value, and increase per second."""

    text: str
    value: float
    per_second: float

    def at(self, seconds: float) -> str:
        return f"{self.text} {self.value + self.per_second * seconds!r}\n"


@dataclass(frozen=True, slots=True)
class Template:
    """Lines of a real page, sorted into those of the node, of one owner and of one run of GPU 0."""

    uuids: tuple[str, ...]
    node: tuple[Line, ...]
    owner: tuple[Line, ...]
    run: tuple[tuple[str, str], ...]
    """Metric and text."""


def template(folder: Path) -> Template:
    """Take the page of a real exporter with a run on GPU 0 that has ended."""
    with daemon(folder, *OPTIONS, "--no-collector.rapl", "--no-collector.hwmon") as exporter:
        begin(exporter, run_id="RUN", gpus=["0"], labels={"user": "OWNER", "model": "m"})
        time.sleep(3)
        end(exporter, "RUN", work={"generated_tokens": 10.0})
        time.sleep(2)
        page = exporter.text()
    uuids: list[str] = []
    node: list[Line] = []
    owner: list[Line] = []
    run: list[tuple[str, str]] = []
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            labels = ",".join(f'{name}="{value}"' for name, value in sample.labels.items())
            text = f"{sample.name}{{{labels}}}"
            if sample.name == m.GPU_UP.name:
                uuids.append(sample.labels["uuid"])
            if sample.labels.get("run_id"):
                run.append((sample.name, text))
                continue
            rises = family.type == "counter"
            line = Line(text, sample.value, (POWER_W if "joules" in sample.name else 0.01) * rises)
            own = sample.name.startswith("wattline_owner_") and sample.labels["kind"] != "none"
            (owner if own else node).append(line)
    return Template(tuple(uuids), tuple(node), tuple(owner), tuple(run))


class Fleet:
    """Pages of all nodes; a run of RUN_S follows another one on each GPU."""

    def __init__(self, of: Template) -> None:
        self._template = of
        self._start_s = time.time()
        self.page_bytes = 0

    def page(self, node: int, now_s: float) -> str:
        lines = list(self._lines(node, now_s))
        text = "".join(lines)
        for gpu, uuid in enumerate(self._template.uuids):
            text = text.replace(uuid, f"GPU-{node:08x}-0000-4000-8000-{gpu:012x}")
        self.page_bytes = len(text)
        return text

    def _lines(self, node: int, now_s: float) -> Iterator[str]:
        seconds = now_s - self._start_s + 1_000
        yield from (line.at(seconds) for line in self._template.node)
        for owner in range(OWNERS):
            for line in self._template.owner:
                yield line.at(seconds / OWNERS).replace("OWNER", f"user-{owner}")
        for gpu in range(GPUS):
            shift_s = (node * GPUS + gpu) / (NODES * GPUS) * RUN_S
            newest = int((now_s - shift_s) // RUN_S)
            for number in (newest, newest - 1):
                start_s = shift_s + number * RUN_S
                if now_s < start_s + RUN_S + TAIL_S:
                    yield from self._run(f"slurm-c-{node}-{gpu}-{number}", gpu, start_s, now_s)

    def _run(self, run_id: str, gpu: int, start_s: float, now_s: float) -> Iterator[str]:
        end_s = start_s + RUN_S
        seconds = min(now_s, end_s) - start_s
        values = {m.RUN_START.name: start_s, m.RUN_END.name: end_s, m.RUN_DURATION.name: seconds}
        for name, text in self._template.run:
            if name in (m.RUN_END.name, m.RUN_OUTCOME.name) and now_s < end_s:
                continue
            value = POWER_W * seconds if "joules_total" in name else values.get(name, 1.0)
            own = text.replace('"RUN"', f'"{run_id}"').replace(
                "OWNER", f"user-{hash(run_id) % OWNERS}"
            )
            own = own.replace(self._template.uuids[0], self._template.uuids[gpu]).replace(
                'gpu="0"', f'gpu="{gpu}"'
            )
            yield f"{own} {value!r}\n"


def _server(fleet: Fleet) -> ThreadingHTTPServer:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            body = fleet.page(int(self.path.rpartition("/")[2]), time.time()).encode()
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Log nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server


def _own_metrics(address: str) -> dict[str, float]:
    """Return Prometheus's own metrics; labels are part of the name."""
    with urllib.request.urlopen(f"{address}/metrics") as response:
        text = response.read().decode()
    return {
        name: float(value)
        for name, value in re.findall(r"^((?:prometheus|process)_\S+) (\S+)$", text, re.MULTILINE)
    }


def _appended(own: Mapping[str, float]) -> float:
    return sum(
        value
        for name, value in own.items()
        if name.startswith("prometheus_tsdb_head_samples_appended_total")
    )


def _slowest_rules(address: str) -> dict[str, float]:
    with urllib.request.urlopen(f"{address}/api/v1/rules") as response:
        groups = json.load(response)["data"]["groups"]
    seconds = {rule["name"]: rule["evaluationTime"] for group in groups for rule in group["rules"]}
    return dict(sorted(seconds.items(), key=lambda rule: -rule[1])[:6])


def _groups(own: Mapping[str, float], metric: str) -> dict[str, float]:
    found = {
        name: value
        for name, value in own.items()
        if name.startswith(f"prometheus_rule_group_{metric}{{")
    }
    return {re.sub(r'.*;(\w+)".*', r"\1", name): value for name, value in found.items()}


def _panels(address: str, end_s: float) -> Iterator[dict[str, Any]]:
    chosen = dict.fromkeys(("cluster", "node", "gpu", "model", "experiment", "owner", "kind"), ".*")
    for board in BOARDS:
        content = json.loads((Path(pictures.HERE) / "dashboards" / f"{board}.json").read_text())
        newest = pictures._newest_run(address, end_s, _SHOWN_S)
        view = pictures.BoardView(
            address, end_s, _SHOWN_S, chosen | {"run": newest, "price": "0.25"}
        )
        for panel in content["panels"]:
            for target in panel.get("targets", ()):
                begun_s = time.monotonic()
                series = sum(1 for _ in view.query(target))
                yield {
                    "board": board,
                    "panel": panel["title"],
                    "series": series,
                    "seconds": round(time.monotonic() - begun_s, 2),
                }


def measure(folder: Path, minutes: float) -> dict[str, Any]:
    (folder / "exporter").mkdir()
    fleet = Fleet(template(folder / "exporter"))
    server = _server(fleet)
    targets = [
        {
            "targets": [f"127.0.0.1:{server.server_port}"],
            "labels": {"instance": f"node-{node}:9847", "__metrics_path__": f"/node/{node}"},
        }
        for node in range(NODES)
    ]
    config = f"rule_files: [{_RULES}/wattline.rules.yml, {_RULES}/wattline.alerts.yml]\n"
    file = folder / "targets.json"
    file.write_text(json.dumps(targets))
    with servers.prometheus(
        folder, [], f"{SCRAPE_S}s", job={"file_sd_configs": [{"files": [str(file)]}]}, config=config
    ) as address:
        time.sleep(60 * minutes - STEADY_S)
        before, before_s = _own_metrics(address), time.time()
        time.sleep(STEADY_S)
        after, seconds = _own_metrics(address), time.time() - before_s
        (added,) = servers.query(address, f"sum(sum_over_time(scrape_series_added[{STEADY_S}s]))")
        appended = _appended(after) - _appended(before)
        rules = _slowest_rules(address)
        active = servers.query(address, "sum(scrape_samples_scraped)")
        panels = list(_panels(address, time.time()))
    server.shutdown()
    return {
        "scraped series": active[0],
        "page bytes": fleet.page_bytes,
        "new series a day": round(added / STEADY_S * DAY_S),
        "samples a second": round(appended / seconds),
        "head series": after["prometheus_tsdb_head_series"],
        "memory bytes": after["process_resident_memory_bytes"],
        "cores": round(
            (after["process_cpu_seconds_total"] - before["process_cpu_seconds_total"]) / seconds, 3
        ),
        "rule seconds": _groups(after, "last_duration_seconds"),
        "rule interval seconds": _groups(after, "interval_seconds"),
        "slowest rules": rules,
        "missed evaluations": _groups(after, "iterations_missed_total"),
        "slowest panels": sorted(panels, key=lambda panel: -panel["seconds"])[:8],
        "largest panels": sorted(panels, key=lambda panel: -panel["series"])[:8],
        "panels": len(panels),
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=20)
    with tempfile.TemporaryDirectory(prefix="fleet-scrape-") as name:
        print(json.dumps(measure(Path(name), parser.parse_args().minutes), indent=2))
