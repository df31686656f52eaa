"""Process tree time with a model of the kernel whose processes change during a scan."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from wattline_exporter.attribution.process_tree_time import CpuOwner, ProcessTreeTime, TreeMember
from wattline_exporter.sensors.processes.procfs import ProcessKey

ROOT = 1
OUTSIDE = 0
START_S = 5.0


@dataclass
class ModelProcess:
    pid: int
    parent: int
    born_s: float
    own: int = 0
    waited: int = 0
    has_ended: bool = False

    @property
    def process(self) -> ProcessKey:
        return ProcessKey(self.pid, self.born_s)


@dataclass
class Kernel:
    """Model of the kernel.

    With `all_are_waited_for` a process ends only after it has waited for its children, and none
    ignores them.
    """

    all_are_waited_for: bool
    processes: dict[int, ModelProcess] = field(
        default_factory=lambda: {ROOT: ModelProcess(ROOT, OUTSIDE, 1.0)}
    )
    now_s: float = START_S
    used: int = 0
    _pids: int = ROOT

    def do(self, event: tuple[str, int, int]) -> None:
        kind, which, amount = event
        alive = [process for process in self.processes.values() if not process.has_ended]
        if not alive:
            return
        process = alive[which % len(alive)]
        self.now_s += 0.01
        if kind == "fork":
            self._pids += 1
            self.processes[self._pids] = ModelProcess(self._pids, process.pid, self.now_s)
        elif kind == "work":
            process.own += amount
            self.used += amount
        elif kind == "end":
            self._end(process, is_ignored=amount % 2 == 0 and not self.all_are_waited_for)
        elif kind == "wait":
            self._wait(process)

    def _children(self, process: ModelProcess) -> list[ModelProcess]:
        return [child for child in self.processes.values() if child.parent == process.pid]

    def _end(self, process: ModelProcess, *, is_ignored: bool) -> None:
        children = self._children(process)
        if self.all_are_waited_for and (children or process.pid == ROOT):
            return
        for child in children:
            child.parent = OUTSIDE
            if child.has_ended:
                del self.processes[child.pid]
        process.has_ended = True
        if process.parent == OUTSIDE or is_ignored:
            del self.processes[process.pid]

    def _wait(self, process: ModelProcess) -> None:
        ended = [child for child in self._children(process) if child.has_ended]
        if ended:
            process.waited += ended[0].own + ended[0].waited
            del self.processes[ended[0].pid]


def scan(kernel, known, meanwhile, owner_of):
    """Scan like CpuUsageReader: each process after its parent, then known ones; `meanwhile` are
    concurrent events.
    """
    members: dict[ProcessKey, TreeMember] = {}
    by_pid: dict[int, ProcessKey] = {}
    waiting = [ROOT, *(process.pid for process in known)]
    while waiting:
        pid = waiting.pop(0)
        now = kernel.processes.get(pid)
        if now is not None and now.process not in members:
            parent = by_pid.get(now.parent)
            members[now.process] = TreeMember(
                owner_of(now, members, parent, known), parent, float(now.own), float(now.waited)
            )
            by_pid[pid] = now.process
            if meanwhile:
                kernel.do(meanwhile.pop())
            if pid in kernel.processes:
                waiting = [child.pid for child in kernel._children(kernel.processes[pid])] + waiting
    return members


def only_one(_now, _members, _parent, _known):
    return CpuOwner("run")


EVENTS = st.tuples(
    st.sampled_from(["fork", "work", "work", "end", "wait"]), st.integers(0, 30), st.integers(1, 50)
)
ROUNDS = st.lists(
    st.tuples(st.lists(EVENTS, max_size=12), st.lists(EVENTS, max_size=6)), max_size=8
)
SINCE = {"run": START_S, "outer": START_S, "inner": START_S}


def run_rounds(kernel, rounds, owner_of=only_one):
    """Yield the attributed totals and the actual time after each scan."""
    tree, known, total = ProcessTreeTime(), {}, {}
    tree.take(scan(kernel, known, [], owner_of), SINCE)
    known = dict(tree.members)
    for events, meanwhile in rounds:
        for event in events:
            kernel.do(event)
        used = tree.take(scan(kernel, known, list(meanwhile), owner_of), SINCE)
        known = dict(tree.members)
        assert all(seconds >= 0 for seconds in used.values())
        for part, seconds in used.items():
            total[part.run_id] = total.get(part.run_id, 0.0) + seconds
        yield total, kernel.used


@settings(max_examples=150, deadline=None)
@given(ROUNDS)
def test_tree_time_never_exceeds_actual_time_while_processes_change(rounds):
    for total, used in run_rounds(Kernel(all_are_waited_for=False), rounds):
        assert sum(total.values()) <= used + 1e-6


@settings(max_examples=150, deadline=None)
@given(ROUNDS)
def test_tree_time_is_exact_after_a_quiet_scan_if_all_are_waited_for(rounds):
    kernel = Kernel(all_are_waited_for=True)
    quiet = [([("wait", ROOT, 1)], []), ([], [])]
    for total, used in run_rounds(kernel, [*rounds, *quiet]):
        assert sum(total.values()) <= used + 1e-6
    assert abs(sum(total.values()) - kernel.used) < 1e-6


def nested(now, members, parent, known):
    """The second process is another run's root."""
    if now.pid == ROOT + 1:
        return CpuOwner("inner")
    if parent:
        return members[parent].owner
    return known[now.process].owner if now.process in known else CpuOwner("outer")


@settings(max_examples=100, deadline=None)
@given(ROUNDS)
def test_tree_time_of_nested_trees_adds_up(rounds):
    kernel = Kernel(all_are_waited_for=True)
    all_rounds = [([("fork", 0, 1), ("work", 1, 30)], []), *rounds, ([], []), ([], [])]
    for total, used in run_rounds(kernel, all_rounds, nested):
        assert sum(total.values()) <= used + 1e-6
    assert abs(sum(total.values()) - kernel.used) < 1e-6


def test_tree_time_lacks_processes_never_waited_for():
    kernel = Kernel(all_are_waited_for=False)
    rounds = [([("fork", 0, 1)], []), ([("work", 1, 30), ("end", 1, 2)], []), ([], [])]
    totals = [dict(total) for total, _ in run_rounds(kernel, rounds)]
    assert kernel.used == 30
    assert totals[-1] == {} or sum(totals[-1].values()) == 0


def test_tree_time_parent_inherits_debt_of_vanished_child():
    root, middle, leaf = ProcessKey(1, 1.0), ProcessKey(2, 6.0), ProcessKey(3, 6.0)
    tree = ProcessTreeTime()
    part = CpuOwner("run")
    tree.take({root: TreeMember(part, None, 0, 0)}, SINCE)
    there = {
        root: TreeMember(part, None, 0, 0),
        middle: TreeMember(part, root, 2, 0),
        leaf: TreeMember(part, middle, 10, 0),
    }
    assert tree.take(there, SINCE) == {part: 12}
    tree.take(
        {root: TreeMember(part, None, 0, 0), middle: TreeMember(part, root, 2, 0)}, SINCE
    )  # the leaf went as we looked
    assert (
        sum(tree.take({root: TreeMember(part, None, 0, 13)}, SINCE).values()) == 1
    )  # 13 of both, 12 of them counted
