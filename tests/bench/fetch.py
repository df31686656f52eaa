"""Cost of reading: a day of power compared with prometheus-api-client, and reports of an hour, a
day and a week.

A real Prometheus, loaded by promtool, serves the day of power. A real VictoriaMetrics serves the
reports, because it loads the 40 million samples of a week in minutes. Every figure covers a whole
process with its imports.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import islice
from pathlib import Path
from statistics import median

from tests.analyzer.experiments import Job, series
from tests.analyzer.node import write_history
from tests.bench import long_run
from tests.bench.program import Program, ProgramError
from tests.bench.wattline import free_port
from wattline.figures import Figure, joules_text

OURS, THEIRS, LEANEST = "Wattline", "prometheus-api-client", "the same, without its frame"
DAY_S, HOUR_S = 86_400, 3_600
STUDY_RUNS = 36
IMPORTED_ROWS = (100_000, 1_000_000)
_READY_WITHIN_S = 60.0
_APART = 1e-4
"""Relative tolerance between two integrals of the same samples."""
_LINES_AT_ONCE = 50
_ROOT = Path(__file__).parents[2]
_PEER = Path(__file__).with_name("peers") / "api_client.py"


@dataclass(frozen=True, slots=True)
class ProcessCost:
    """Resources of one process from start to end."""

    seconds: float
    cpu_s: float
    peak_bytes: int
    stdout: str


@dataclass(frozen=True, slots=True)
class Lengths:
    rounds: int
    long_s: int
    """Length of the longest report in seconds."""


@dataclass
class Fetch:
    day: dict[str, list[ProcessCost]] = field(default_factory=dict)
    samples: int = 0
    help: list[ProcessCost] = field(default_factory=list)
    reports: dict[int, list[ProcessCost]] = field(default_factory=dict)
    """Results by length of the run in seconds."""
    imports: dict[int, ProcessCost] = field(default_factory=dict)
    """Results by number of rows of the log."""
    studies: dict[str, list[ProcessCost]] = field(default_factory=dict)
    """Results by command, of short runs in a local history."""
    script: list[ProcessCost] = field(default_factory=list)
    """Results of the peer's script, which only integrates the power of the shortest run."""
    trouble: list[str] = field(default_factory=list)


def measure(folder: Path, programs: Path | None, lengths: Lengths) -> Fetch:
    """Measure; `programs` are the peers' commands, if installed."""
    result = Fetch()
    for name, part in (("prometheus", _day), ("victoria-metrics", _reports)):
        if shutil.which(name) is None:
            result.trouble.append(
                f"{name} is not installed: apt-get install prometheus victoria-metrics"
            )
        else:
            part(result, folder, programs, lengths)
    _imports(result, folder)
    _studies(result, folder, lengths)
    return result


def _day(result: Fetch, folder: Path, programs: Path | None, lengths: Lengths) -> None:
    start_s = math.floor(time.time()) - 2 * DAY_S
    text, blocks = folder / "power.txt", folder / "blocks"
    result.samples = long_run.openmetrics(long_run.power(start_s, DAY_S), text)
    _done(["promtool", "tsdb", "create-blocks-from", "openmetrics", text, blocks])
    (folder / "prometheus.yml").write_text("global: {}\n")
    end_s = start_s + DAY_S - 1
    with _server(
        "prometheus", [f"--storage.tsdb.path={blocks}", "--storage.tsdb.retention.time=30d"], folder
    ) as address:
        commands: dict[str, list[str | Path]] = {
            OURS: [
                sys.executable,
                "-m",
                "tests.bench.fetch_energy",
                address,
                f"{start_s}",
                f"{end_s}",
            ]
        }
        for name, way in (THEIRS, "frame"), (LEANEST, "lists"):
            if script := _script(programs, way, address, (start_s, end_s)):
                commands[name] = script
        for _ in range(lengths.rounds):
            for name, command in commands.items():
                result.day.setdefault(name, []).append(_run(command))
    _agree(result)


def _script(
    programs: Path | None, way: str, address: str, span_s: tuple[int, int]
) -> list[str | Path]:
    """Return the command of the peer's script, empty if the peer is not installed."""
    arguments = [way, address, "wattline_gpu_power_watts", *map(str, span_s)]
    return [programs / "python", _PEER, *arguments] if programs else []


def _agree(result: Fetch) -> None:
    """Raise ProgramError if an energy differs from the true one."""
    for name, spent in result.day.items():
        for gpu in range(long_run.GPUS):
            true_j = (300.0 + gpu) * DAY_S
            energy_j = json.loads(spent[0].stdout)[long_run.uuid(gpu)]
            if abs(energy_j / true_j - 1) > _APART:
                raise ProgramError(
                    f"{name} says {energy_j:.0f} J of GPU {gpu}, which drew {true_j:.0f} J"
                )


def _reports(result: Fetch, folder: Path, programs: Path | None, lengths: Lengths) -> None:
    analyzer: list[str | Path] = [Path(sys.executable).with_name("analyzer")]
    for _ in range(lengths.rounds):
        result.help.append(_run([*analyzer, "--help"]))
    for seconds in (HOUR_S, DAY_S, lengths.long_s):
        of_it = folder / f"{seconds}"
        of_it.mkdir()
        with _server("victoria-metrics", ["-retentionPeriod=1y"], of_it) as address:
            start_s = math.floor(time.time()) - seconds - HOUR_S
            _load(address, start_s, seconds)
            command = [
                *analyzer,
                "report",
                "--run-id",
                long_run.RUN_ID,
                "--source",
                address,
                "--format",
                "json",
            ]
            script = _script(programs, "frame", address, (start_s, start_s + seconds))
            for _ in range(lengths.rounds if seconds == HOUR_S else 1):
                result.reports.setdefault(seconds, []).append(_run(command))
                result.script += [_run(script)] if script and seconds == HOUR_S else []
        shutil.rmtree(of_it)


def _imports(result: Fetch, folder: Path) -> None:
    """Import logs of nvidia-smi of one GPU that draws 300 W, with a sample each 0.1 s."""
    begin = datetime(2026, 11, 20, tzinfo=UTC)
    for rows in IMPORTED_ROWS:
        log, history = folder / f"log-{rows}.csv", folder / f"log-{rows}.sqlite"
        with log.open("w") as file:
            file.write("timestamp, index, uuid, power.draw [W]\n")
            for number in range(rows):
                when = begin + timedelta(seconds=0.1 * number)
                file.write(f"{when:%Y/%m/%d %H:%M:%S.%f}, 0, GPU-a, 300.00 W\n")
        command: list[str | Path] = [
            Path(sys.executable).with_name("analyzer"),
            "import",
            log,
            "--out",
            history,
            "--timezone",
            "UTC",
        ]
        result.imports[rows] = _run([*command, "--out", history])
        true_text = joules_text(Figure(300 * 0.1 * (rows - 1)))
        text = result.imports[rows].stdout
        if f"GPU 0 {true_text}" not in text:
            raise ProgramError(f"the import says {text.strip()!r} of a GPU that used {true_text}")


def _studies(result: Fetch, folder: Path, lengths: Lengths) -> None:
    """Compare runs of 7 s, one after the other, at six power limits on two GPUs."""
    begin_s = math.floor(time.time()) - 10 * STUDY_RUNS - HOUR_S
    jobs = []
    for number in range(STUDY_RUNS):
        cap_w, repeat = 300.0 + 50 * (number % 6), number // 6
        labels = {"experiment": "caps", "power_limit_watts": f"{cap_w:g}", "repeat": f"{repeat}"}
        rate = math.sqrt(cap_w) * (1 + repeat / 1_000)
        jobs.append(
            Job(f"r{number}", begin_s + 10 * number, labels, (number % 2,), cap_w, rate, 7.0)
        )
    history = write_history(folder, series(begin_s, jobs))
    for command in ("recommend", "variability"):
        arguments: list[str | Path] = [
            command,
            "--experiment",
            "caps",
            "--source",
            history,
            "--format",
            "json",
        ]
        for _ in range(lengths.rounds):
            cost = _run([Path(sys.executable).with_name("analyzer"), *arguments])
            result.studies.setdefault(command, []).append(cost)


def _load(address: str, start_s: float, seconds: int) -> None:
    every = long_run.json_lines(long_run.run(start_s, seconds))
    while lines := list(islice(every, _LINES_AT_ONCE)):
        request = urllib.request.Request(
            f"{address}/api/v1/import", "".join(lines).encode(), method="POST"
        )
        urllib.request.urlopen(request, timeout=60).close()
    urllib.request.urlopen(f"{address}/internal/force_flush", timeout=60).close()


@contextmanager
def _server(name: str, flags: Sequence[str], folder: Path) -> Iterator[str]:
    address = f"127.0.0.1:{free_port()}"
    if name == "prometheus":
        own, ready = (
            [f"--config.file={folder / 'prometheus.yml'}", f"--web.listen-address={address}"],
            "/-/ready",
        )
    else:
        own, ready = (
            [f"-storageDataPath={folder / 'data'}", f"-httpListenAddr={address}"],
            "/health",
        )

    def answers() -> bool:
        with suppress(OSError), urllib.request.urlopen(f"http://{address}{ready}", timeout=2):
            return True
        return False

    with Program(name, [name, *own, *flags], {}, folder) as program:
        program.until(answers, _READY_WITHIN_S)
        yield f"http://{address}"


def _run(command: Sequence[str | Path]) -> ProcessCost:
    """Run a command and return its resources; raise ProgramError if it fails."""
    environment = {**os.environ, "PYTHONPATH": str(_ROOT), "WATTLINE_SOURCE": ""}
    begin_s = time.perf_counter()
    with (
        tempfile.TemporaryFile("w+") as errors,
        subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=errors, text=True, env=environment
        ) as process,
    ):
        assert process.stdout
        stdout = process.stdout.read()
        _, status, spent = os.wait4(process.pid, 0)
        seconds = time.perf_counter() - begin_s
        process.returncode = os.waitstatus_to_exitcode(status)
        errors.seek(0)
        last_line = errors.read().strip().splitlines() or ["no output"]
    if process.returncode:
        raise ProgramError(
            f"{' '.join(map(str, command[:3]))} ended with {process.returncode}: {last_line[-1]}"
        )
    return ProcessCost(seconds, spent.ru_utime + spent.ru_stime, spent.ru_maxrss * 1_024, stdout)


def _done(command: Sequence[str | Path]) -> None:
    completed = subprocess.run(command, capture_output=True, text=True, check=False)
    if completed.returncode:
        raise ProgramError(
            f"{command[0]} ended with {completed.returncode}: "
            f"{completed.stderr.strip().splitlines()[-1]}"
        )


def typical(spent: Sequence[ProcessCost], what: str) -> float:
    return median(float(getattr(each, what)) for each in spent)
