"""Holders and commands of findings on simulated nodes."""

import math

import pytest

from tests.analyzer.waste.nodes import BEGIN_S, Node, Pod, Run, busy, deep_idle, found_waste, loaded

HOUR = 3_600.0


def test_waste_command_ends_a_job_only_if_all_its_gpus_are_idle():
    job = Run("slurm-alps-4711", 0.0, gpus=(0, 1), labels={"discovered": "slurm", "user": "ann"})
    idle, working = [loaded(2 * HOUR)], [loaded(HOUR), busy(HOUR)]

    (both,) = found_waste(Node([idle, idle], [job])).findings
    (one, *_) = found_waste(Node([idle, working], [job])).findings
    past = found_waste(Node([idle, idle], [job]), now_s=BEGIN_S + 3 * HOUR).findings

    assert both.command == "scancel 4711"
    assert len(both.gpus) == 2
    assert one.command == past[0].command == "analyzer report --run-id slurm-alps-4711"


def test_waste_command_does_not_end_a_job_that_works_on_another_node():
    job = Run("slurm-alps-4711", 0.0, labels={"discovered": "slurm"})

    waste = found_waste(
        Node([[loaded(HOUR)]], [job]), Node([[busy(HOUR)]], [job], instance="b:9847")
    )

    assert waste.findings[0].command == "analyzer report --run-id slurm-alps-4711"


@pytest.mark.parametrize(
    ("labels", "run_id", "command"),
    [
        (
            {"discovered": "kubernetes", "namespace": "ml", "pod": "llm-0"},
            "pod-1",
            "kubectl delete pod -n ml llm-0",
        ),
        ({"discovered": "container"}, "container-0123456789ab", "docker stop 0123456789ab"),
        ({"discovered": "container"}, "db", "analyzer report --run-id db"),  # of a client
        ({"discovered": "slurm"}, "mine-12", "analyzer report --run-id mine-12"),
        (
            {"discovered": "service", "unit": "vllm.service"},
            "unit-vllm-17",
            "systemctl stop vllm.service",
        ),
        ({"discovered": "slurm"}, "slurm-alps-12.2", "scancel 12"),
        (
            {"discovered": "user", "user": "ann"},
            "user-ann-17",
            "analyzer report --run-id user-ann-17",
        ),
        ({}, "train-1", "analyzer report --run-id train-1"),
    ],
)
def test_waste_command_of_each_holder(labels, run_id, command):
    (finding,) = found_waste(
        Node([[deep_idle(600.0), loaded(HOUR)]], [Run(run_id, 600.0, labels=labels)])
    ).findings

    assert finding.command == command


def test_waste_of_pod_names_the_pod_until_it_ends():
    pods = [
        Pod(0, "ml", "llm-0", 600.0, 600.0 + HOUR),
        Pod(0, "ml", "llm-1", 600.0 + HOUR, math.inf),
    ]
    node = Node([[deep_idle(600.0), loaded(2 * HOUR)]], pods=pods)

    findings = {finding.holders[0].name: finding for finding in found_waste(node).findings}

    assert {name: one.command for name, one in findings.items()} == {
        "ml/llm-0": "",
        "ml/llm-1": "kubectl delete pod -n ml llm-1",
    }
    assert findings["ml/llm-0"].waste_j == pytest.approx(50 * HOUR, rel=0.02)


def test_waste_of_pod_with_discovered_run_names_it_once():
    run = Run("pod-1", 0.0, labels={"discovered": "kubernetes", "namespace": "ml", "pod": "llm-0"})
    node = Node([[loaded(HOUR)]], [run], [Pod(0, "ml", "llm-0", 0.0, math.inf)])

    (finding,) = found_waste(node).findings

    assert [holder.kind for holder in finding.holders] == ["run"]
