"""Grouping of a fleet's series by the user's keys, in PromQL."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from wattline.contract import metrics as m
from wattline.contract.api import OTHER_RUNS
from wattline_analyzer.core.sources.promql import (
    RUN,
    Dialect,
    QuerySpan,
    copy_label,
    label_list,
    max_by,
)
from wattline_analyzer.usage.fleet import NO_RUN, Keys

NODE, GPU_MODEL, WORKLOAD, KIND, NAMESPACE = (
    "node",
    "gpu_model",
    "workload",
    "kind",
    "label_namespace",
)
USER = "label_user"
RUN_KIND = "run"
"""Kind of a run that a client begins; a discovered run has the label `discovered`."""
_PODS_STEP = "5m"


@dataclass(frozen=True, slots=True)
class FleetCut:
    """Grouping of a fleet by the user's keys over a window.

    With `recorded` the queries use recording rules; with `pods` a run's namespace may be that of
    its GPUs' pods.
    """

    by: tuple[str, ...]
    policy: str
    dialect: Dialect
    whole: QuerySpan
    recorded: bool = False
    pods: bool = False

    @property
    def run_labels(self) -> tuple[str, ...]:
        """Labels of `wattline_run_info` for the keys that are labels of runs."""
        return tuple(label_of_key(key) for key in self.by if key not in (NODE, GPU_MODEL))

    @property
    def labels(self) -> tuple[str, ...]:
        return tuple(label_of_key(key) for key in self.by)

    @property
    def device_labels(self) -> tuple[str, ...]:
        """Labels for the keys that belong to a device."""
        return tuple(label_of_key(key) for key in self.by if key in (NODE, GPU_MODEL))


def label_of_key(key: str) -> str:
    if key in (GPU_MODEL, WORKLOAD):
        return key
    return {NODE: "instance", KIND: "label_discovered"}.get(key, f"label_{key}")


def run_keys(by: Sequence[str], labels: Mapping[str, str]) -> Keys:
    """Return the texts of the keys for labels of a run."""
    return tuple(
        labels.get(label_of_key(key), "") or (RUN_KIND if key == KIND else "") for key in by
    )


def device_keys(by: Sequence[str], labels: Mapping[str, str]) -> Keys:
    """Return the texts of the keys for labels of a device, which has no run."""
    return tuple(
        labels.get(label_of_key(key), "") if key in (NODE, GPU_MODEL) else NO_RUN for key in by
    )


def folded_keys(by: Sequence[str], labels: Mapping[str, str]) -> Keys:
    """Return the texts of the keys for labels of a device, whose runs are beyond the limits of its
    exporter.
    """
    return tuple(
        labels.get(label_of_key(key), "") if key in (NODE, GPU_MODEL) else OTHER_RUNS for key in by
    )


def with_model(cut: FleetCut, values: str, gpu: str = "device") -> str:
    """Add the label of the GPU's model, if it is a key; `gpu` is the label of the values with the
    UUID.
    """
    if GPU_MODEL not in cut.by:
        return values
    named = max_by(
        ("instance", "uuid", "name"), f"max_over_time({m.GPU_INFO.name}{cut.whole.range})"
    )
    models = copy_label(f"topk by (instance, uuid) (1, {named})", GPU_MODEL, "name")
    models = models if gpu == "uuid" else copy_label(models, gpu, "uuid")
    return f"({values} * on (instance, {gpu}) group_left ({GPU_MODEL}) {models})"


def with_labels(cut: FleetCut, values: str, labels: Sequence[str], identity: Sequence[str]) -> str:
    """Add labels of runs to the values, matched by the labels `identity`."""
    if not labels:
        return values
    return (
        f"{values} * on ({label_list(identity)}) group_left ({label_list(labels)}) "
        f"{run_info(cut, labels, identity)}"
    )


def run_info(cut: FleetCut, labels: Sequence[str], identity: Sequence[str]) -> str:
    """Return the query for the value 1 per run with its labels; of contradicting labels one is
    used.

    The label `user` of a run may be known some time after its start.
    """
    info = _weighted_info(cut, labels)
    if NAMESPACE in labels and cut.pods:
        bare = _weighted_info(cut, labels, f'{NAMESPACE}=""')
        info = _joined(
            bare,
            NAMESPACE,
            copy_label(_of_runs("namespace", _pods(cut)), NAMESPACE, "namespace"),
            info,
        )
    if GPU_MODEL in labels:
        gpus = max_by((*RUN, "uuid"), f"max_over_time({m.RUN_GPU_INFO.name}{cut.whole.range})")
        models = _of_runs(GPU_MODEL, with_model(cut, gpus, "uuid"))
        known = max_by((*RUN, *(name for name in labels if name != GPU_MODEL)), info)
        info = _joined(known, GPU_MODEL, models, known)
    chosen = f"topk by ({label_list(identity)}) (1, {max_by((*identity, *labels), info)})"
    return f"({chosen} ^ 0)" if USER in labels else chosen


def _weighted_info(cut: FleetCut, labels: Sequence[str], matchers: str = "") -> str:
    """Return the query for the labels of runs, with the value 2 for a known user and 1 for
    others.
    """

    def info(*more: str) -> str:
        selector = f"{m.RUN_INFO.name}{{{','.join(filter(None, (matchers, *more)))}}}"
        return f"max_over_time({selector}{cut.whole.range})"

    named, unnamed = f'{USER}!=""', f'{USER}=""'
    return f"((2 * {info(named)}) or {info(unnamed)})" if USER in labels else info()


def _joined(values: str, label: str, others: str, else_: str) -> str:
    """Add the label of `others` to the values; for runs without it, use `else_`."""
    on = f"on ({label_list(RUN)})"
    return f"({values} * {on} group_left ({label}) ({others})) or {on} {else_}"


def _of_runs(label: str, values: str) -> str:
    return f"topk by ({label_list(RUN)}) (1, {max_by((*RUN, label), values)})"


def _pods(cut: FleetCut) -> str:
    """Return the query for the namespaces of the pods that used a run's GPUs, step by step as pods
    change.
    """
    pods = (
        "topk by (instance, uuid) (1, "
        f"{max_by(('instance', 'uuid', 'namespace'), m.GPU_POD_INFO.name)})"
    )
    used = f"{m.RUN_GPU_INFO.name} * on (instance, uuid) group_left (namespace) {pods}"
    step = f"[{cut.whole.long_ms}ms:{_PODS_STEP}]"
    return f"max_over_time(({used}){step})"
