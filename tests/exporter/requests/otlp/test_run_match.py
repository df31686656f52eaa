"""Run of a request by the attributes of its resource."""

import os

import pytest

from tests.exporter.api import sleeper
from wattline_exporter.requests.otlp.run_match import NoRunError, RunMatcher, process_ancestors
from wattline_exporter.runs.run_record import RunRecord
from wattline_exporter.sensors.processes.cgroup_paths import CgroupOwner
from wattline_exporter.sensors.processes.procfs import ProcessKey

T0 = 1_700_000_000.0
UID = "0a1b2c3d-0000-4000-8000-1234567890ab"
CONTAINER = "c0" * 32


def run(run_id, *, started_at=T0 - 100, ended_at=None, owner=None, pids=(), cgroup=None):
    return RunRecord(
        run_id,
        "llm",
        {},
        "{}",
        [],
        {},
        discovers=False,
        begin_s=0.0,
        started_at=started_at,
        lease_s=1.0,
        lease_until_s=1.0,
        alive_s=1.0,
        ended_at=ended_at,
        discovered=owner,
        cgroup=cgroup,
        processes=[ProcessKey(pid, 1.0) for pid in pids],
    )


def find(runs, resource=None, run_id=None, *, ancestors=lambda _: (), pids_of=lambda _: set()):
    matcher = RunMatcher(lambda: runs, host="node-1", ancestors=ancestors, pids_of=pids_of)
    return matcher.find(T0, T0 + 2.0, resource or {}, run_id)


POD = run(f"pod-{UID}.2", owner=CgroupOwner("kubernetes", UID, "/kubepods/x"))
BOX = run("container-c0c0c0c0c0c0", owner=CgroupOwner("container", CONTAINER, "/docker/x"))
NAMED = run("bench-1", pids=(4711,))


@pytest.mark.parametrize(
    ("resource", "expected"),
    [
        ({"wattline.run_id": "bench-1", "k8s.pod.uid": UID}, "bench-1"),
        ({"k8s.pod.uid": UID.upper()}, f"pod-{UID}.2"),
        ({"container.id": CONTAINER}, "container-c0c0c0c0c0c0"),
        ({"process.pid": 4711}, "bench-1"),
        ({"vllm.process_id": "4711", "host.name": "node-1"}, "bench-1"),
    ],
)
def test_run_named_by_the_resource_is_found(resource, expected):
    assert find([POD, BOX, NAMED], resource) == expected


def test_run_id_of_the_span_precedes_the_resource():
    assert find([POD, NAMED], {"wattline.run_id": "bench-1"}, POD.run_id) == POD.run_id


def test_pod_uid_in_the_cgroup_of_a_clients_run_is_found():
    cgroup = f"/kubepods.slice/kubepods-pod{UID.replace('-', '_')}.slice/cri-containerd-{CONTAINER}.scope"
    runs = [run("mine", cgroup=cgroup), NAMED]

    assert find(runs, {"k8s.pod.uid": UID}) == "mine"
    assert find(runs, {"container.id": CONTAINER}) == "mine"


def test_child_of_a_runs_process_is_found():
    assert find([NAMED, BOX], {"process.pid": 5000}, ancestors=lambda _: [4999, 4711]) == "bench-1"


def test_process_in_the_cgroup_of_a_run_is_found():
    assert (
        find(
            [run("a", cgroup="/a"), BOX],
            {"process.pid": 7},
            pids_of=lambda path: {7} if path == "/a" else set(),
        )
        == "a"
    )


def test_only_run_at_the_time_of_the_request_is_found():
    ended = run("before", started_at=T0 - 200, ended_at=T0 - 100)
    later = run("after", started_at=T0 + 100)

    assert find([ended, NAMED, later]) == "bench-1"


@pytest.mark.parametrize(
    ("runs", "resource", "words"),
    [
        ([], {}, "no run was open"),
        ([NAMED, BOX], {}, "2 runs were open"),
        ([NAMED], {"wattline.run_id": "x"}, "no run 'x'"),
        ([NAMED], {"k8s.pod.uid": UID}, "pod or container"),
        ([NAMED], {"host.name": "node-2"}, "host 'node-2', not of 'node-1'"),
    ],
)
def test_request_without_run_is_an_error(runs, resource, words):
    with pytest.raises(NoRunError, match=words):
        find(runs, resource)


def test_ancestors_of_a_real_process_are_its_parents():
    child = sleeper()
    try:
        assert process_ancestors(child.pid)[0] == os.getpid()
    finally:
        child.kill()
        child.wait()
