"""Kills and pauses of the exporter's processes, while clients report runs: `python -m
tests.fault_trials.kills`.

Eight clients begin runs, report phases and work, and end them. The command prints the number of
acknowledged runs, phases and units of work that are missing, and of energies outside of their
interval.
"""

from __future__ import annotations

import argparse
import math
import random
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

from tests.daemon import Daemon, start, wait_until_it_serves
from tests.exporter.daemon.run_clients import Acknowledged, Client, figures
from tests.laboratory.results import (
    current_commit,
    file_of,
    markdown_table,
    stored_rows,
    text_table,
    write_rows,
)
from wattline_exporter.simulation import FILE_NAME, Simulation, Square

RESULTS = file_of("kills")
CLIENTS, GPUS = 8, 8
PAUSE_S = 0.3
STOPPED_S = 5.0
FINAL_S = 10.0
"""Time after which late doubts have widened the intervals of ended runs."""
OPTIONS = ("--simulate", f"{GPUS}xH200", "--no-collector.rapl", "--no-collector.host")


def _worker(exporter: Daemon) -> psutil.Process | None:
    with suppress(psutil.NoSuchProcess):
        return next(
            (child for child in exporter.children() if "nvml_worker" in " ".join(child.cmdline())),
            None,
        )
    return None


def _kill_exporter(exporter: Daemon, _rng: random.Random) -> None:
    exporter.process.kill()


def _kill_all(exporter: Daemon, _rng: random.Random) -> None:
    processes = [psutil.Process(exporter.process.pid), *exporter.children()]
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.kill()


def _kill_worker(exporter: Daemon, _rng: random.Random) -> None:
    if worker := _worker(exporter):
        worker.kill()


def _stop(exporter: Daemon, rng: random.Random) -> None:
    """Stop the exporter, the worker or both for a while."""
    worker = _worker(exporter)
    both = [psutil.Process(exporter.process.pid), *([worker] if worker else [])]
    stopped = rng.choice([both, both[:1], both[-1:]])
    for process in stopped:
        process.send_signal(signal.SIGSTOP)
    time.sleep(STOPPED_S)
    for process in stopped:
        process.send_signal(signal.SIGCONT)


KINDS: dict[str, tuple[Callable[[Daemon, random.Random], None], int]] = {
    "SIGKILL of the exporter": (_kill_exporter, 40),
    "SIGKILL of all its processes": (_kill_all, 20),
    "SIGKILL of the NVML worker": (_kill_worker, 30),
    "SIGSTOP for 5 s": (_stop, 15),
}
KEPT = ("lost_runs", "lost_phases", "lost_work", "changed_ends", "phases_above_run")
"""Numbers that are 0 if nothing acknowledged is lost."""
_ENDS_EXPORTER = (_kill_exporter, _kill_all)


def measure(kind: str, count: int, seed: int, folder: Path) -> dict[str, Any]:
    """Return what `count` kills or pauses of this kind have cost."""
    act, rng = KINDS[kind][0], random.Random(f"{kind} {seed}")
    folder.mkdir()
    clients = [
        Client(f"client-{number}", random.Random(rng.random()), PAUSE_S)
        for number in range(CLIENTS)
    ]
    done = 0
    while done < count:
        exporter = _start(folder, has_load=done > 0)
        with ThreadPoolExecutor(CLIENTS) as pool:
            using = [pool.submit(client.use, exporter) for client in clients]
            while exporter.process.poll() is None and done < count:
                time.sleep(rng.uniform(0.3, 4.0))
                act(exporter, rng)
                done += 1
                if act in _ENDS_EXPORTER:
                    break
            if act not in _ENDS_EXPORTER:
                time.sleep(3.0)
                exporter.stop()
            exporter.process.wait(30)
            for client in using:
                client.result()
    return {
        "kind": kind,
        "count": count,
        **_check(folder, [run for client in clients for run in client.runs]),
    }


def _start(folder: Path, *, has_load: bool) -> Daemon:
    exporter = start(folder, *OPTIONS)
    wait_until_it_serves(exporter)
    if not has_load:
        with Simulation.open(exporter.folder / FILE_NAME) as simulation:
            for gpu in range(GPUS):
                simulation.set_load(gpu, Square(72.0, 640.0, 0.4 + 0.2 * gpu))
    return exporter


def _check(folder: Path, acknowledged: Sequence[Acknowledged]) -> dict[str, Any]:
    """End all runs with a last exporter; return the numbers of missing and of wrong values."""
    exporter = _start(folder, has_load=True)
    found = {
        "runs": len(acknowledged),
        "lost_runs": 0,
        "lost_phases": 0,
        "lost_work": 0,
        "changed_ends": 0,
    }
    runs = []
    try:
        for run in acknowledged:
            status, ended = exporter.post(f"/api/v1/runs/{run.run_id}/end", {"outcome": "ok"})
            if status != 200:
                found["lost_runs"] += 1
                continue
            runs.append(run.run_id)
            names = {phase["name"] for phase in ended["phases"]}
            found["lost_phases"] += len(set(run.phases) - names)
            found["lost_work"] += ended["work"].get("steps", 0.0) < sum(run.work.values())
            found["changed_ends"] += (
                run.end is not None and run.end["energy_joules"] != ended["energy_joules"]
            )
        time.sleep(FINAL_S)
        final = [exporter.get(f"/api/v1/runs/{run_id}")[1] for run_id in runs]
        offsets_s = {run.run_id: run.offset_s for run in acknowledged}
        with Simulation.open(exporter.folder / FILE_NAME) as simulation:
            energies = [
                one for run in final for one in figures(simulation, run, offsets_s[run["run_id"]])
            ]
    finally:
        exporter.stop()
    outside = [one for one in energies if one.error > 1.0]
    for one in outside:
        print(one, file=sys.stderr)
    return {
        **found,
        "phases_above_run": sum(_phases_exceed(run) for run in final),
        "energies": len(energies),
        "outside": len(outside),
        "silent": sum(not one.notes for one in outside),
        "worst": round(max((one.error for one in energies), default=0.0), 2),
    }


def _phases_exceed(run: dict[str, Any]) -> bool:
    """Return whether the phases of a run add up to more than the run."""
    seconds = math.fsum(phase["duration_seconds"] for phase in run["phases"])
    exceeds = [
        math.fsum(phase["energy_joules"].get(component, 0.0) for phase in run["phases"])
        > math.fsum(devices.values()) * (1 + 1e-9)
        for component, devices in run["energy_joules"].items()
    ]
    return any(exceeds) or seconds > run["duration_seconds"] + 1e-6


_HEAD = {
    "kind": "what",
    "count": "number",
    "runs": "runs",
    "lost_runs": "runs lost",
    "lost_phases": "phases lost",
    "lost_work": "runs with lost work",
    "changed_ends": "changed ends",
    "phases_above_run": "phases above their run",
    "energies": "energies",
    "outside": "outside",
    "silent": "outside without a note",
    "worst": "largest error / half-width",
}


def markdown() -> str:
    """Return the table of the stored results."""
    rows = [[str(row[key]) for key in _HEAD] for row in stored_rows(RESULTS)]
    return markdown_table(list(_HEAD.values()), rows)


def main() -> int:
    current_commit()
    parser = argparse.ArgumentParser(prog="python -m tests.fault_trials.kills", description=__doc__)
    parser.add_argument(
        "--kind", nargs="+", choices=KINDS, default=list(KINDS), metavar="KIND", help="default: all"
    )
    parser.add_argument(
        "--share", type=float, default=1.0, help="number of kills as a share of the usual one"
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results to this file")
    given = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(prefix="wattline-kills-") as folder,
        ThreadPoolExecutor(len(given.kind)) as pool,
    ):
        jobs = [
            pool.submit(
                measure,
                kind,
                max(1, round(given.share * KINDS[kind][1])),
                given.seed,
                Path(folder, str(at)),
            )
            for at, kind in enumerate(given.kind)
        ]
        rows = [job.result() for job in jobs]
    print(text_table(list(_HEAD.values()), [[str(row[key]) for key in _HEAD] for row in rows]))
    if given.json:
        write_rows(given.json, rows)
    return int(any(row[key] for row in rows for key in KEPT))


if __name__ == "__main__":
    sys.exit(main())
