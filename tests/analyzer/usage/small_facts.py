"""Facts of one node with one GPU, and runs of known energy, by hand."""

from wattline.contract import metrics as m
from wattline.contract.run import Run
from wattline.contract.run_series import to_rows
from wattline_analyzer.usage.facts import Counter, Facts, RunReadings, UsageRequest
from wattline_analyzer.usage.sums import Usage, usage_of

START_S, END_S = 0.0, 600.0
GPU = "GPU-a"


def counter(metric, joules, *, node="a", reason="", hidden=0.0, **labels):
    own = {"policy": "idle_shared"} if "policy" in metric.labels else {}
    return Counter(node, metric, {**own, **labels}, joules, reason, bool(reason), hidden, True)


def gpu(joules, *, node="a", reason=""):
    return counter(m.GPU_ENERGY, joules, node=node, reason=reason, gpu="0", uuid=GPU)


def unattributed(joules):
    return counter(m.RUN_ATTRIBUTED_ENERGY, joules, run_id="", component="gpu", device=GPU)


def owner(joules, name, **options):
    labels = {"kind": "slurm" if name else "none", "owner": name, "component": "gpu"}
    return counter(m.OWNER_ENERGY, joules, **labels, **options)


def run_part(run: Run, node="a", before=None, reason=""):
    return RunReadings(node, run.run_id, list(to_rows(run)), before or {}, reason)


def usage(counters, runs=(), *, by="model", intensities=None, carbon=None) -> Usage:
    """Return the usage of a window of 600 s."""
    facts = Facts(
        name="server",
        start_s=START_S,
        end_s=END_S,
        nodes=tuple(sorted({one.node for one in counters})),
        begins={},
        ends={},
        fell=(),
        counters=counters,
        runs=runs,
        models={},
        intensities=intensities or {},
        pods=[],
    )
    request = UsageRequest(tuple(by.split(",")), "idle_shared", START_S, END_S)
    return usage_of(facts, request, carbon)
