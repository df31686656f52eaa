"""Benchmark of Wattline and peers on the same eight simulated GPUs, in one run.

`make bench` or `python -m tests.bench`. The table goes to stdout, progress to stderr. Every program
is a separate process; none is left running.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import platform
import signal
import sys
import tempfile
import threading
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import wattline_exporter
from tests.bench import (
    cost,
    discovery,
    energy,
    fetch,
    fleet,
    peer,
    reported_requests,
    requests,
    scale,
    slowdown,
)
from tests.bench import replay as replayed
from tests.bench.cost_figures import cost_figures, scale_figures, slowdown_figures
from tests.bench.energy import ToolErrors
from tests.bench.energy_figures import energy_figures, replay_figures
from tests.bench.fetch_figures import fetch_figures
from tests.bench.figures import Figure, markdown, table
from tests.bench.program import ProgramError

PARTS = ("cost", "energy", "replay", "slowdown", "scale", "discovery", "fetch", "fleet", "requests")


@dataclass(frozen=True, slots=True)
class Lengths:
    cost: cost.Lengths
    pairs: int
    scale_span_s: float
    replayed_share: float
    energy_s: float
    fetch: fetch.Lengths
    fleet: fleet.Size


FULL = Lengths(
    cost.Lengths(span_s=8.0, spans=5, rounds=90),
    16,
    3.0,
    1.0,
    180.0,
    fetch.Lengths(5, 7 * fetch.DAY_S),
    fleet.Size(125, 7.0),
)
QUICK = Lengths(
    cost.Lengths(span_s=4.0, spans=3, rounds=20),
    4,
    2.0,
    0.2,
    45.0,
    fetch.Lengths(3, 2 * fetch.DAY_S),
    fleet.Size(20, 2.0),
)


@dataclass(frozen=True, slots=True)
class Stage:
    """Stage of the benchmark; `programs` are the peers' commands, if installed."""

    folder: Path
    programs: Path | None
    lengths: Lengths
    stopped: threading.Event


@dataclass
class BenchResults:
    """Results of the parts that ran."""

    figures: list[Figure] = field(default_factory=list)
    trouble: list[str] = field(default_factory=list)
    samples: dict[str, int] = field(default_factory=dict)
    """Samples of one scrape, by server."""
    energy: list[ToolErrors] = field(default_factory=list)
    load_average: float = 0.0


def main() -> int:
    """Return 0 if all was measured, even with missed goals; 1 if Wattline failed; 130 after
    Ctrl-C.
    """
    parser = argparse.ArgumentParser(
        prog="python -m tests.bench", description=__doc__.splitlines()[0]
    )
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="also write the figures to this file"
    )
    parser.add_argument("--markdown", action="store_true", help="print the table as Markdown")
    parser.add_argument("--quick", action="store_true", help="shorter, with fewer samples")
    parser.add_argument(
        "--only", choices=PARTS, nargs="+", default=PARTS, help="these parts (default: all)"
    )
    options = parser.parse_args()
    for sign in (
        signal.SIGINT,
        signal.SIGTERM,
    ):  # SIGINT too: a background job of a shell ignores it
        signal.signal(sign, signal.default_int_handler)
    stopped = threading.Event()
    try:
        with tempfile.TemporaryDirectory(prefix="wattline-bench-") as folder:
            return _bench(Path(folder), options, stopped)
    except ProgramError as error:
        _say(str(error))
        return 1
    except KeyboardInterrupt:
        _say("interrupted")
        return 130


def _bench(folder: Path, options: argparse.Namespace, stopped: threading.Event) -> int:
    results, programs, measured_code = (
        BenchResults(load_average=os.getloadavg()[0]),
        None,
        _digest(),
    )
    if {"cost", "energy", "fetch"} & set(options.only):
        try:
            _say("the peers")
            programs = peer.install()
        except peer.NoPeersError as error:
            results.trouble.append(str(error))
            _say(results.trouble[-1])
    stage = Stage(folder, programs, QUICK if options.quick else FULL, stopped)
    try:
        for part in (part for part in PARTS if part in options.only):
            _measure(part, results, stage)
    finally:  # also for parts measured before Ctrl-C
        if _digest() != measured_code:
            results.trouble.append(
                "the exporter's code changed during the run: the figures mix two versions"
            )
        print((markdown if options.markdown else table)(results.figures))
        for line in results.trouble:
            print(line)
        if options.json:
            options.json.write_text(json.dumps(document(results), indent=1) + "\n")
    return int(
        any(each.window_errors is None and each.tool == cost.OURS for each in results.energy)
    )


def _measure(part: str, results: BenchResults, stage: Stage) -> None:
    folder, programs, lengths, stopped = stage.folder, stage.programs, stage.lengths, stage.stopped
    match part:
        case "cost":
            _say("scrapes, CPU and memory")
            costs = cost.measure(folder, programs, lengths.cost, stopped)
            results.figures += cost_figures(costs)
            results.trouble += costs.trouble
            results.samples = {
                server: scrapes[-1].samples for (server, _), scrapes in costs.alone.items()
            }
        case "slowdown":
            _say("a CPU-bound neighbour")
            results.figures += slowdown_figures(slowdown.measure(folder, lengths.pairs, stopped))
        case "scale":
            _say("up to 64 GPUs, and slow drivers")
            scales, trouble = scale.measure(folder, lengths.scale_span_s, stopped)
            results.figures += scale_figures(scales)
            results.trouble += trouble
        case "requests":
            _say("energy of the requests of two days")
            results.figures += requests.request_figures()
            _say(f"{reported_requests.RATE:,} requests per second")
            reports = reported_requests.measure(
                folder, lengths.cost.span_s, lengths.cost.spans, stopped
            )
            results.figures += reported_requests.report_figures(reports)
            results.trouble += reports.trouble
        case "discovery":
            _say(f"discovery of runs at {discovery.CGROUPS} cgroups")
            found = discovery.measure(folder, lengths.cost.span_s, lengths.cost.spans, stopped)
            results.figures += discovery.discovery_figures(found)
            results.trouble += found.trouble
        case "fleet":
            _say(f"a fleet of {lengths.fleet.gpus} GPUs over {lengths.fleet.days:g} days")
            results.figures += fleet.figures(fleet.measure(folder, lengths.fleet))
        case "fetch":
            _say("fetching, and whole reports")
            fetch_results = fetch.measure(folder, programs, lengths.fetch)
            results.figures += fetch_figures(fetch_results)
            results.trouble += fetch_results.trouble
        case "replay":
            _say("energy, replayed")
            results.figures += replay_figures(replayed.replay(lengths.replayed_share, stopped))
        case "energy":
            _say("energy, live")
            results.energy = energy.measure(
                folder, programs, lengths.energy_s, threading.Event()
            )  # set at its end
            results.figures += energy_figures(results.energy)
            results.trouble += [
                f"{each.sensor}: {each.trouble}" for each in results.energy if each.trouble
            ]


def document(results: BenchResults) -> dict[str, Any]:
    return {
        "python": platform.python_version(),
        "cores": os.cpu_count(),
        "peers": peer.VERSIONS,
        "samples": results.samples,
        "figures": [
            {**asdict(figure), "ratio": figure.ratio, "met": figure.met}
            for figure in results.figures
        ],
        "energy": [
            {
                **{
                    name: getattr(each, name)
                    for name in ("sensor", "tool", "seconds", "trouble", "aliasing")
                },
                "errors": asdict(each.window_errors) if each.window_errors else None,
                "mean": each.window_errors.mean if each.window_errors else None,
            }
            for each in results.energy
        ],
        "trouble": results.trouble,
        "load_average": results.load_average,
    }


def _digest() -> str:
    """Return a digest of the exporter's sources, which its processes read when they start."""
    sources = sorted(Path(wattline_exporter.__file__).parent.rglob("*.py"))
    return hashlib.sha256(b"\0".join(source.read_bytes() for source in sources)).hexdigest()


def _say(text: str) -> None:
    print(f"bench: {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
