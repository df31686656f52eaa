"""Overlaps of tenants: common GPUs."""

from types import SimpleNamespace

from analyzer.studies.tenant_overlap import TenantRun, concurrent_runs


def test_concurrent_runs_need_a_common_gpu():
    def tenant(run_id, start_s, *uuids):
        gpus = tuple(SimpleNamespace(instance="node", device=uuid) for uuid in uuids)
        facts = {"run_id": run_id, "started_at_s": start_s, "ended_at_s": start_s + 20, "instances": ("node",)}
        return TenantRun(None, SimpleNamespace(**facts, gpus=gpus), None)

    runs = [tenant("a", 0, "GPU-0"), tenant("b", 1, "GPU-1"), tenant("c", 2, "GPU-0", "GPU-2"), tenant("d", 3, "GPU-2")]

    steps = [[run.report.run_id for run in step] for step in concurrent_runs(runs)]
    assert steps == [["a", "c", "d"], ["b"]]
