"""Numbers of series of a real exporter's page, and of a fleet of 200 nodes.

`python -m tests.exporter.web.series_counts` counts again, into `golden/series_counts.json`; then:
make docs.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from prometheus_client.samples import Sample

from tests.daemon import Daemon, begin, daemon, end
from tests.fakes.powercap import Powercap
from wattline.contract.metrics import HOST_CPU_UTILIZATION, IDLE_POWER

FILE = Path(__file__).parent / "golden" / "series_counts.json"
OPTIONS = ("--simulate", "8xH200", "--carbon.intensity", "230", "--no-history")
CPUS = {False: "without RAPL", True: "with RAPL"}
SERIES = ("all", "slim")

NODES, GPUS, RUNS_A_DAY = 200, 8, 100_000
DAY_S, HEAD_S, SCRAPE_S = 86_400, 3 * 3_600, 15
OWNERS = 20
"""Owners seen on a node."""
SETTLED_WITHIN_S = 60.0
"""Time in which a page must have all series of a node; it takes about 11 s."""
WORKER_SERIES = 2
"""CPU time and memory of the process that calls NVML."""
CASES = (
    ("default", "all", 600, 1.0),
    ("`--runs.series slim`", "slim", 600, 1.0),
    ("`--runs.series slim --runs.tail 1m`", "slim", 60, 1.0),
    ("the same with `--runs.min-seconds 60`, half of the runs being shorter", "slim", 60, 0.5),
    ("the same with a limit that 90 % of the runs are below", "slim", 60, 0.1),
)
"""Text, --runs.series, --runs.tail in seconds, and the share of runs that have series."""


def count_series(folder: Path) -> dict[str, dict[str, int]]:
    """Return the series of a node without runs, of ended runs, and of an owner, by processor and
    --runs.series.
    """
    counts = {}
    for has_rapl, cpus in CPUS.items():
        for series in SERIES:
            place = folder / f"{cpus}-{series}"
            place.mkdir()
            counts[f"{cpus}, {series}"] = _count(place, series, has_rapl=has_rapl)
    return counts


def _count(folder: Path, series: str, *, has_rapl: bool) -> dict[str, int]:
    tree = Powercap(folder / "sys")
    for package in range(2 if has_rapl else 0):
        tree.zone(f"intel-rapl:{package}", f"package-{package}", 1_000.0)
        tree.zone(f"intel-rapl:{package}:0", "dram", 100.0)
    tree.root.mkdir(exist_ok=True)
    more = ["--collector.rapl" if has_rapl else "--no-collector.rapl", "--no-collector.hwmon"]
    with daemon(
        folder, *OPTIONS, "--runs.series", series, "--path.sysfs", str(tree.root), *more
    ) as exporter:
        _draw(tree)
        samples = _settled(exporter)
        found = {"node": sum(_by_run(samples).values()) - _owners(samples)["none"]}
        for gpus in (1, GPUS):
            run_id = f"on-{gpus}"
            begin(exporter, run_id=run_id, gpus=[str(i) for i in range(gpus)])
            _draw(tree)
            end(exporter, run_id, work={"generated_tokens": 10.0})
            found[f"run of {gpus} GPU"] = _by_run(exporter.samples())[run_id]
        found["owner"] = _owners(exporter.samples())["run"]
    return found


def _settled(exporter: Daemon) -> list[Sample]:
    """Return the page once it has the series that need several seconds of readings.

    These are the idle power of each GPU, the CPUs' utilization and the worker's resources.
    """
    until_s = time.monotonic() + SETTLED_WITHIN_S
    while True:
        samples = exporter.samples()
        names = Counter(sample.name for sample in samples)
        is_settled = names[IDLE_POWER.name] == GPUS and names[HOST_CPU_UTILIZATION.name] == 1
        workers = [sample for sample in samples if sample.labels.get("role") == "nvml_worker"]
        if is_settled and len(workers) == WORKER_SERIES:
            return samples
        assert time.monotonic() < until_s, "the page lacks series"
        time.sleep(0.5)


def _draw(tree: Powercap) -> None:
    """Let the CPUs use energy for two polls."""
    for _ in range(3):
        if tree.range_uj:
            tree.tick(50.0)
        time.sleep(1.1)


def _by_run(samples: Sequence[Sample]) -> Counter[str]:
    """Return the number of series of each run; those without a run are of the node.

    Reads that were late or failed have series of their own, which a busy machine adds.
    """
    return Counter(
        sample.labels.get("run_id", "")
        for sample in samples
        if sample.labels.get("outcome") not in ("late", "failed")
        or not sample.name.startswith("wattline_source_")
    )


def _owners(samples: Sequence[Sample]) -> Counter[str]:
    return Counter(
        sample.labels["kind"] for sample in samples if sample.name.startswith("wattline_owner_")
    )


def count_table() -> str:
    """Return the table of the counted series."""
    counts = json.loads(FILE.read_text())
    rows = [
        "| node with 8 GPUs | without runs | a run of 1 GPU | a run of 8 GPUs | an owner |",
        "|---|---:|---:|---:|---:|",
    ]
    for name, found in counts.items():
        cells = " | ".join(
            str(found[key]) for key in ("node", "run of 1 GPU", f"run of {GPUS} GPU", "owner")
        )
        rows.append(f"| {name} | {cells} |")
    return "\n".join(rows)


def fleet_table() -> str:
    """Return the table of a fleet with RUNS_A_DAY runs of one GPU, a run on each GPU at any
    time.
    """
    counts = json.loads(FILE.read_text())
    rows = [
        "| settings | RAPL | new series a day | active series | samples a second | series in 3 h |",
        "|---|---|---:|---:|---:|---:|",
    ]
    for text, series, tail_s, share in CASES:
        for has_rapl, cpus in CPUS.items():
            found = counts[f"{cpus}, {series}"]
            of_run = found["run of 1 GPU"]
            fixed = NODES * (found["node"] + (OWNERS + 1) * found["owner"])
            new = RUNS_A_DAY * share * of_run
            open_runs = NODES * GPUS * of_run  # long runs hold most of the GPUs
            active = fixed + open_runs + new * tail_s / DAY_S
            head = fixed + open_runs + new * HEAD_S / DAY_S
            cells = " | ".join(
                f"{round(n, -3 if n >= 1e4 else -2):,.0f}"
                for n in (new, active, active / SCRAPE_S, head)
            )
            rows.append(f"| {text} | {'yes' if has_rapl else 'no'} | {cells} |")
    return "\n".join(rows)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name:
        FILE.write_text(json.dumps(count_series(Path(name)), indent=2) + "\n")
