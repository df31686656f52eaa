"""Full, read-only and damaged disks: the exporter keeps serving, logs once, and recovers."""

import errno
import os
import random
import resource
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import closing

import pytest

from tests.daemon import begin, daemon, end, environment, start, wait_until_it_serves
from tests.polling import eventually
from wattline.contract.history import HISTORY_FILE, STATE_FILE
from wattline_exporter.runs.run_record import STORED
from wattline_exporter.runs.service import NOT_SAVED
from wattline_exporter.simulation import Constant
from wattline_exporter.storage.history import History
from wattline_exporter.storage.state_file import StateFile

OPTIONS = ("--simulate", "2xH200", "--no-collector.rapl", "--no-collector.host")
LOAD_W = 400.0


class FullDisk:
    """Separate file system that is filled completely."""

    def __init__(self, folder):
        self.folder = folder
        folder.mkdir()
        mounted = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", folder], check=False
        )
        if mounted.returncode:
            pytest.skip("mounting is not permitted here")

    def begin(self, _exporter):
        with (self.folder / "filler").open("wb", buffering=0) as filler:
            try:
                while True:
                    filler.write(b"x" * 512)
            except OSError as error:
                if error.errno != errno.ENOSPC:
                    raise

    def repair(self):
        (self.folder / "filler").unlink()

    def close(self):
        subprocess.run(["umount", "--lazy", self.folder], check=True)


class Quota:
    """Limit of 16 KiB for the size of files and the offset of writes."""

    def __init__(self, folder):
        self._limits = None

    def begin(self, exporter):
        self._pid = exporter.process.pid
        _, hard = self._limits = resource.prlimit(self._pid, resource.RLIMIT_FSIZE)
        resource.prlimit(self._pid, resource.RLIMIT_FSIZE, (16 << 10, hard))

    def repair(self):
        resource.prlimit(self._pid, resource.RLIMIT_FSIZE, self._limits)

    def close(self):
        pass


class ReadOnly:
    """Immutable files: each write fails, also through an open descriptor, as after a read-only
    remount.

    The mapped file is excluded: a write to a mapped immutable file is a SIGBUS, unlike on a
    read-only file system.
    """

    def __init__(self, folder):
        self._folder = folder
        self._probe(folder.parent / "probe")

    def _probe(self, path):
        with path.open("wb", buffering=0) as file:
            if (
                not shutil.which("chattr")
                or subprocess.run(["chattr", "+i", path], check=False).returncode
            ):
                pytest.skip("chattr is not permitted here")
            try:
                file.write(b"x")
            except OSError:
                return
            finally:
                subprocess.run(["chattr", "-i", path], check=True)
        pytest.skip("this file system permits writes to open files")

    def _files(self):
        return [
            self._folder / f"{name}{journal}"
            for name in (STATE_FILE, HISTORY_FILE)
            for journal in ("", "-wal")
        ]

    def begin(self, _exporter):
        subprocess.run(["chattr", "+i", *self._files()], check=True)

    def repair(self):
        subprocess.run(["chattr", "-i", *self._files()], check=True)

    def close(self):
        if self._folder.exists():
            subprocess.run(["chattr", "-f", "-i", *self._files()], check=False)


@pytest.fixture(params=[FullDisk, Quota, ReadOnly], ids=["full", "quota", "read-only"])
def disk(request, tmp_path):
    disk = request.param(tmp_path / "state")
    yield disk
    disk.close()


def rows(path, question):
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute(question).fetchall()


def test_full_disk_metrics_are_served_and_state_is_saved_later(tmp_path, disk):
    with daemon(tmp_path, *OPTIONS) as exporter, exporter.simulation() as simulation:
        simulation.set_load(0, Constant(LOAD_W))
        open_run = begin(exporter, run_id="begun-before")
        time.sleep(1.5)
        before = exporter.value("wattline_gpu_energy_joules_total", gpu="0")
        disk.begin(exporter)
        eventually(lambda: "cannot write to" in exporter.log(), "the log message", exporter.log)
        ended = begin(exporter, run_id="begun-meanwhile", gpus=["0"])
        begin(exporter, run_id="still-running")
        time.sleep(3.0)
        assert exporter.get("/metrics")[0] == 200
        assert exporter.value("wattline_gpu_energy_joules_total", gpu="0") > before
        assert exporter.value("wattline_state_up") == 0
        ended = end(exporter, ended["run_id"])
        assert ended["notes"].pop() == NOT_SAVED
        meanwhile_at = time.time()
        time.sleep(2.0)
        disk.repair()
        eventually(lambda: "again" in exporter.log(), "it writes again", exporter.log)
        exporter.wait_for_metric(lambda up: up == 1, "wattline_state_up")
        assert exporter.log().count("cannot write to") == 1
        assert exporter.log().count("again") == 1
        (uuid,) = ended["energy_joules"]["gpu"]
        off_j = abs(ended["energy_joules"]["gpu"][uuid] - LOAD_W * ended["duration_seconds"])
        assert off_j <= ended["energy_uncertainty_joules"]["gpu"][uuid]
        time.sleep(1.2)
        assert exporter.stop(signal.SIGKILL) == -signal.SIGKILL
    running = dict(rows(exporter.folder / STATE_FILE, "SELECT run_id, running FROM run"))
    moments = [
        t_ms / 1e3
        for (t_ms,) in rows(exporter.folder / HISTORY_FILE, "SELECT DISTINCT t_ms FROM samples")
    ]
    with daemon(tmp_path, *OPTIONS) as second:
        assert second.get("/api/v1/runs/begun-meanwhile") == (200, ended)
        assert end(second, "still-running")["outcome"] == "ok"
        assert end(second, open_run["run_id"])["duration_seconds"] > 6

    assert running == {"begun-before": 1, "begun-meanwhile": 0, "still-running": 1}
    assert sum(meanwhile_at - 3.0 < moment < meanwhile_at for moment in moments) >= 2
    assert "Traceback" not in exporter.log() + second.log()


def start_error(tmp_path, *before):
    """Return the message of an exporter that does not start; `before` is a command that starts
    it.
    """
    command = [
        *before,
        sys.executable,
        "-m",
        "wattline_exporter.cli.main",
        "serve",
        "--web.listen-address",
        "127.0.0.1:0",
    ]
    command += ["--state.path", str(tmp_path / "state"), *OPTIONS]
    ended = subprocess.run(
        command, env=environment(), capture_output=True, text=True, timeout=60, check=False
    )
    assert ended.returncode == 1, ended.stderr
    (line,) = ended.stderr.splitlines()
    return line


def test_full_disk_at_start_is_one_line_with_remedy(tmp_path):
    disk = FullDisk(tmp_path / "state")
    try:
        with daemon(tmp_path, *OPTIONS) as first:
            run_id = begin(first)["run_id"]
        disk.begin(first)
        line = start_error(tmp_path)
        assert "make room" in line
        assert "move it away" not in line
        disk.repair()
        with daemon(tmp_path, *OPTIONS) as second:
            assert end(second, run_id)["outcome"] == "ok"
    finally:
        disk.close()


def test_read_only_state_folder_is_one_line(tmp_path):
    folder = tmp_path / "state"
    with daemon(tmp_path, *OPTIONS):
        pass
    for path in folder.iterdir():
        path.chmod(0o400)
    folder.chmod(0o500)
    powerless = ("setpriv", "--bounding-set=-all", "--inh-caps=-all") if os.geteuid() == 0 else ()
    if powerless and not shutil.which("setpriv"):
        pytest.skip("root ignores file modes and setpriv is not installed")
    line = start_error(tmp_path, *powerless)
    folder.chmod(0o700)

    assert f"cannot write to {folder}" in line
    assert "--state.path" in line


# -- damaged files


@pytest.fixture(scope="module")
def kept_exporter_folder(tmp_path_factory):
    """Return the folder of an exporter killed during a run, with journals next to the files."""
    with daemon(tmp_path_factory.mktemp("killed"), *OPTIONS) as exporter:
        for number in range(3):
            end(exporter, begin(exporter, run_id=f"run-{number}")["run_id"])
        begin(exporter, run_id="open")
        time.sleep(2.5)
        exporter.stop(signal.SIGKILL)
    return exporter.folder


@pytest.fixture
def killed_exporter_folder(tmp_path, kept_exporter_folder):
    """Return a copy of that folder, as the state folder of the test."""
    return shutil.copytree(kept_exporter_folder, tmp_path / "state")


def damage(path, at=0, length=4_096):
    size = path.stat().st_size
    with path.open("r+b") as file:
        file.seek(at)
        file.write(random.Random(1).randbytes(min(length, size - at)))


@pytest.mark.parametrize("name", [STATE_FILE, HISTORY_FILE])
@pytest.mark.parametrize("at", [0, 100], ids=["its head", "its first page"])
def test_damaged_file_is_one_line_and_left_unchanged(tmp_path, killed_exporter_folder, name, at):
    for path in killed_exporter_folder.glob("*-wal"):  # its content would repair the damage
        path.unlink()
    damage(killed_exporter_folder / name, at)
    before = {path.name: path.read_bytes() for path in killed_exporter_folder.glob(f"{name}")}
    second = start(tmp_path, *OPTIONS)

    assert second.process.wait(30) == 1
    (line,) = second.log().splitlines()
    assert name in line
    assert "move it away" in line
    assert {
        path.name: path.read_bytes() for path in killed_exporter_folder.glob(f"{name}")
    } == before


def test_history_damaged_at_run_time_does_not_stop_serving(tmp_path):
    with daemon(tmp_path, *OPTIONS) as exporter:
        run_id = begin(exporter)["run_id"]
        time.sleep(2.0)
        with closing(sqlite3.connect(exporter.folder / HISTORY_FILE)) as connection:
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        damage(exporter.folder / HISTORY_FILE, 0, 1 << 20)
        eventually(lambda: "cannot write to" in exporter.log(), "the log message", exporter.log)
        time.sleep(2.0)
        assert exporter.get("/metrics")[0] == 200
        assert exporter.get("/api/v1/query?query=wattline_gpu_up[60s]")[0] in (500, 503)
        assert end(exporter, run_id)["outcome"] == "ok"
        time.sleep(1.2)
        (running,) = rows(exporter.folder / STATE_FILE, "SELECT running FROM run")
        assert exporter.log().count("cannot write to") <= 2  # another error message is possible
        assert exporter.stop() == 0

    assert running == (0,)
    assert "Traceback" not in exporter.log()


def test_truncated_journal_loses_only_the_last_seconds(tmp_path, killed_exporter_folder):
    """After a power cut any part of the unsynced data may be missing."""
    whole = {
        name: (killed_exporter_folder / f"{name}-wal").read_bytes()
        for name in (STATE_FILE, HISTORY_FILE)
    }
    rng = random.Random(2)
    for number in range(20):
        folder = tmp_path / f"cut-{number}"
        shutil.copytree(killed_exporter_folder, folder)
        for name, content in whole.items():
            (folder / f"{name}-wal").write_bytes(content[: rng.randrange(len(content) + 1)])
            (folder / f"{name}-shm").unlink(missing_ok=True)
        state, history = StateFile(folder), History(folder)
        saved = state.load()
        assert {STORED.validate_json(body).run_id for body in saved.runs} <= {
            "open",
            "run-0",
            "run-1",
            "run-2",
        }
        assert all(totals.energy_j >= 0 for totals in saved.totals.values())
        history.close()
        state.close()
        for name in whole:
            assert rows(folder / name, "PRAGMA quick_check") == [("ok",)]


def test_exporter_starts_after_a_power_cut(tmp_path, killed_exporter_folder):
    for name in (STATE_FILE, HISTORY_FILE):
        journal = killed_exporter_folder / f"{name}-wal"
        journal.write_bytes(journal.read_bytes()[: journal.stat().st_size // 2 + 7])
        (killed_exporter_folder / f"{name}-shm").unlink(missing_ok=True)
    second = start(tmp_path, *OPTIONS)
    try:
        wait_until_it_serves(second)
        assert second.get("/metrics")[0] == 200
    finally:
        assert second.stop() == 0
