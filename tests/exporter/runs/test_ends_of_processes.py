"""Runs whose processes are killed: the time of the end, its energy and its shares."""

import pytest

from tests.exporter.runs.ledger_node import GPU, POWER_W, LedgerNode
from wattline.contract.work import SHARE_POLICY
from wattline_exporter.runs import lifecycle
from wattline_exporter.sensors.processes.procfs import ProcessKey
from wattline_exporter.storage.state_file import StateFile

JOB = ProcessKey(4711, 1.0)
SCAN_S = 1.0
EDGE_J = 9.0 + 9.36
"""Half-width at the start or end of a run. Both powers are always the same, so that they may be
means over an update of 50 ms: of its 18 J, any part may lie on either side of the instant in its
middle. The time of an update is known to ± 25 ms, and 1 ms of jitter: 26 ms at 360 W are 9.36 J.
"""


class Node(LedgerNode):
    """Node with one run of a process, which is scanned once a second until its end."""

    def __init__(self, file):
        self.is_job_alive = True
        super().__init__(file, is_alive=lambda _: self.is_job_alive)
        self.scan()
        self.run = self.begin(gpus=[GPU.id])
        self.run.processes = [JOB]
        self.scan()

    def scan(self):
        self.ledger.tick()
        self.ledger.attribution.tick(self.ledger.runs.values(), self.now_s)

    def live_for(self, seconds):
        for _ in range(round(seconds / SCAN_S)):
            self.run_for(SCAN_S)
            self.scan()

    def await_end(self):
        """Scan until the run has ended, and return it with its energy and half-width."""
        for _ in range(12):
            self.run_for(SCAN_S)
            self.scan()
            if not self.run.is_open:
                break
        measured = self.ledger.measured(self.run)
        energy = measured.energy("gpu")
        return measured, energy.number, energy.half_width


@pytest.fixture
def node(tmp_path):
    file = StateFile(tmp_path)
    yield Node(file)
    file.close()


def test_killed_run_between_two_scans_has_an_interval_up_to_the_second(node):
    """The process lives for 0.7 s after the last scan that found it: 252 J that the energy may
    lack.
    """
    node.live_for(5)
    node.run_for(0.7)
    died_s, node.is_job_alive = node.now_s, False
    node.run_for(0.3)
    node.scan()
    view, energy_j, half_j = node.await_end()

    true_j = POWER_W * (died_s - node.run.begin_s)
    assert energy_j < true_j < energy_j + half_j < true_j + 0.5 * POWER_W
    assert any(note.startswith("it ended between") for note in view.notes)
    assert not any("exporter was not running" in note for note in view.notes)


def test_killed_run_whose_exit_was_seen_ends_then(node):
    node.live_for(5)
    node.run_for(0.7)
    died_s, node.is_job_alive = node.now_s, False
    node.run_for(0.3)
    lifecycle.note_exits(node.run, {JOB: died_s})
    node.scan()
    view, energy_j, half_j = node.await_end()

    assert view.duration_s == pytest.approx(died_s - node.run.begin_s, abs=1e-6)
    assert energy_j == pytest.approx(POWER_W * view.duration_s, abs=half_j)
    assert half_j == pytest.approx(2 * EDGE_J)
    assert not any(note.startswith("it ended between") for note in view.notes)


def test_killed_run_whose_exit_was_seen_holds_its_gpu_until_then(node):
    node.live_for(5)
    node.run_for(0.7)
    died_s, node.is_job_alive = node.now_s, False
    node.run_for(0.3)
    lifecycle.note_exits(node.run, {JOB: died_s})
    node.scan()
    node.await_end()

    share_j = node.ledger.attribution.energies.share_j(GPU, SHARE_POLICY, node.run.run_id)
    assert share_j == pytest.approx(POWER_W * (died_s - node.run.begin_s), abs=0.1 * POWER_W)


def test_killed_run_during_a_pause_of_the_exporter_spans_the_pause(node):
    """The exporter sees nothing for 6 s, of which the process lives 3 s."""
    node.live_for(5)
    node.run_for(3)
    died_s, node.is_job_alive = node.now_s, False
    node.run_for(3)
    lifecycle.note_exits(
        node.run, {JOB: node.now_s}
    )  # a paused exporter sees the exit when it continues
    node.scan()
    view, energy_j, half_j = node.await_end()

    assert energy_j < POWER_W * (died_s - node.run.begin_s) < energy_j + half_j
    assert any(note.startswith("it ended between") for note in view.notes)


def test_duration_of_a_killed_run_never_exceeds_its_final_one(node):
    node.live_for(5)
    node.is_job_alive = False
    shown_s = []
    while node.run.is_open and len(shown_s) < 20:
        node.run_for(SCAN_S)
        node.scan()
        shown_s.append(node.ledger.snapshot(node.run.run_id).duration_s)

    assert not node.run.is_open
    assert max(shown_s) == shown_s[-1] == pytest.approx(node.run.end_s - node.run.begin_s)


def test_run_that_starts_another_process_in_time_continues(node):
    node.live_for(5)
    node.is_job_alive = False
    node.live_for(4)
    node.is_job_alive = True
    node.live_for(10)

    assert node.run.running
    assert node.run.end_until_s is None


def test_run_without_processes_holds_its_gpu(node):
    """A run of a client on another machine has a lease, and no process that could be gone."""
    node.run.processes = []
    node.is_job_alive = False
    before_j = node.ledger.attribution.energies.share_j(GPU, SHARE_POLICY, node.run.run_id)
    node.live_for(10)

    share_j = node.ledger.attribution.energies.share_j(GPU, SHARE_POLICY, node.run.run_id)
    assert node.run.end_until_s is None
    assert share_j - before_j == pytest.approx(10 * POWER_W)


def test_watch_exits_of_many_runs_reads_the_exact_times_once(tmp_path):
    class Exits:
        exited_s = {JOB: 1.0}  # noqa: RUF012  # of this test only
        reads = 0

        @property
        def exact_s(self):
            self.reads += 1
            return self.exited_s

        def watch(self, processes):
            self.watched = processes

    file, exits = StateFile(tmp_path), Exits()
    node = LedgerNode(file)
    runs = [node.begin(gpus=[]) for _ in range(3)]
    runs[0].processes = [JOB]
    lifecycle.watch_exits(runs, exits)
    file.close()

    assert (exits.reads, exits.watched) == (1, {JOB})


@pytest.mark.parametrize("lease_s", [2.5, 5.5])
def test_lease_that_ends_after_the_process_does_not_extend_the_run(node, lease_s):
    node.live_for(5)
    node.is_job_alive = False
    last_s = node.run.alive_s
    node.run.lease_until_s = node.now_s + lease_s
    view, _, _ = node.await_end()

    assert view.duration_s == pytest.approx(last_s - node.run.begin_s)


def test_lease_without_processes_has_an_interval_from_the_last_report_on(node):
    """The client may have ended at any time in the 4.5 s after its report, at 360 W."""
    node.run.processes = []
    node.is_job_alive = False
    node.live_for(3)
    node.ledger.renew(node.run)
    reported_s = node.now_s
    node.run.lease_until_s = reported_s + 4.5
    view, energy_j, half_j = node.await_end()

    assert view.notes[-1].startswith(
        "its lease ran out 4 s after its last report: it may have ended earlier; "
    )
    assert view.duration_s == pytest.approx(node.run.lease_until_s - node.run.begin_s)
    assert energy_j == pytest.approx(POWER_W * view.duration_s, rel=0.01)
    least_j = POWER_W * (reported_s - node.run.begin_s)
    assert 0.9 * least_j < energy_j - half_j <= least_j


def test_lease_without_a_report_has_an_interval_from_the_start_on(node):
    node.run.processes, node.run.alive_s = [], node.run.begin_s
    node.is_job_alive = False
    node.live_for(2)
    node.run.lease_until_s = node.now_s + 6.5
    _, energy_j, half_j = node.await_end()

    # all of the energy since the first report, at the start, is in doubt, beside both edges
    assert energy_j - half_j == pytest.approx(-2 * EDGE_J)


def test_lease_with_living_processes_has_an_interval_from_the_report_on(node):
    """The client was killed after its last report, and a process of its server lives up to the end
    of the lease.
    """
    node.live_for(3)
    node.run.lease_s = 4.5
    reported_s = node.now_s
    node.run.lease_until_s = reported_s + node.run.lease_s
    view, energy_j, half_j = node.await_end()

    assert "with living processes" in view.notes[-1]
    assert view.duration_s == pytest.approx(node.run.lease_until_s - node.run.begin_s)
    assert energy_j == pytest.approx(POWER_W * view.duration_s, rel=0.01)
    assert energy_j - half_j <= POWER_W * (reported_s - node.run.begin_s)
