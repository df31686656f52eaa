"""What a fleet's server is asked: PromQL whose answers have a row a group, however many samples and days lie behind.

Every text is evaluated at the end of the whole window; a `Span` says which part of it is meant. Series that two jobs
scraped from one exporter count once. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from analyzer.sources.fleet import recorded
from analyzer.sources.instant import Dialect
from analyzer.sources.promql import (
    RUN,
    Counter,
    Side,
    Span,
    counted,
    listed,
    most,
    recorded_rise,
    renamed,
    rise,
    total,
)
from exporter.contract import metrics as m

HELD = "idle_shared"
"""The policy by which all of a GPU's energy is its holders' for as long as it is held."""
NODE, GPU_MODEL, WORKLOAD, NAMESPACE = "node", "gpu_model", "workload", "label_namespace"
_DEVICE = ("component", "device")
_BASIS = ("basis", "quality")
_PODS_STEP = "5m"
_DAY_MS = 86_400_000
_SOON_MS = 300_000


@dataclass(frozen=True, slots=True)
class Asked:
    """How the fleet is cut: `by` has the keys as the user names them; `whole` is the window.

    `recorded` says to take from recording rules what they hold; `pods` that GPUs may be known by their pods.
    """

    by: tuple[str, ...]
    policy: str
    dialect: Dialect
    whole: Span
    recorded: bool = False
    pods: bool = False

    @property
    def run_labels(self) -> tuple[str, ...]:
        """The labels of `wattline_run_info` for those keys that are labels of runs."""
        return tuple(label(key) for key in self.by if key not in (NODE, GPU_MODEL))

    @property
    def labels(self) -> tuple[str, ...]:
        return tuple(label(key) for key in self.by)

    @property
    def device_labels(self) -> tuple[str, ...]:
        """Of those keys that a device has, whoever uses it."""
        return tuple(label(key) for key in self.by if key in (NODE, GPU_MODEL))


def label(key: str) -> str:
    if key in (GPU_MODEL, WORKLOAD):
        return key
    return "instance" if key == NODE else f"label_{key}"


def devices(asked: Asked, span: Span) -> Iterator[str]:
    """Joules by component and the devices' keys."""
    if asked.recorded:
        yield total((*asked.device_labels, "component"), recorded_rise(recorded.DEVICES, span, recorded.BEHIND_MS))
        return
    gpus = rise(Counter(m.GPU_ENERGY.name, ("instance", "gpu", "uuid")), span, asked.dialect)
    gpus = total(asked.device_labels, _with_model(asked, renamed(gpus, "device", "uuid")))
    yield f'label_replace({gpus}, "component", "gpu", "", "")'
    for component, zone in (("cpu", "package"), ("dram", "dram")):
        packages = Counter(m.CPU_ENERGY.name, ("instance", "package"), f'zone="{zone}"')
        joules = total(asked.device_labels, rise(packages, span, asked.dialect))
        yield f'label_replace({joules}, "component", "{component}", "", "")'


def unclaimed(asked: Asked, span: Span) -> Iterator[str]:
    """Joules of no run, by component and the devices' keys."""
    labels = (*asked.device_labels, "component")
    if asked.recorded:
        yield total(labels, recorded_rise(recorded.UNCLAIMED, span, recorded.BEHIND_MS))
        return
    for which, join in _components(asked):
        matchers = f'run_id="",policy="{asked.policy}"{which}'
        joules = rise(Counter(m.RUN_ATTRIBUTED_ENERGY.name, ("instance", *_DEVICE), matchers), span, asked.dialect)
        yield total(labels, _with_model(asked, joules) if join else joules)


def claimed(asked: Asked, span: Span, side: Side) -> Iterator[str]:
    """Joules of runs, by component and the keys."""
    for which, join in _components(asked):
        joules = counted(_joules(asked, which), span, side)
        if join:
            joules = _with_model(asked, joules)
        labels, own = (asked.run_labels, (GPU_MODEL,)) if join else (_all_of_runs(asked), ())
        by_run = total((*RUN, "component", *own), joules)  # fewer to join
        yield total((*asked.labels, "component"), _with_labels(asked, by_run, labels, RUN))


def work(asked: Asked, span: Span, side: Side) -> Iterator[str]:
    """Amounts by unit and the keys. Each instance counts the contributors that reported to it, so that they add."""
    amounts = counted(Counter(m.RUN_WORK.name, ("unit",)), span, side)
    yield total((*asked.labels, "unit"), _with_labels(asked, amounts, _all_of_runs(asked), RUN))


def working(asked: Asked, span: Span, side: Side) -> Iterator[str]:
    """Joules of those runs that counted a unit, by unit and the keys: what the unit's amount is to be held against.

    A run on several nodes may count on one of them; where nodes are keys, each has its own.
    """
    identity = RUN if NODE in asked.by else ("run_id",)
    units = f"group by ({listed((*identity, 'unit'))}) (max_over_time({m.RUN_WORK.name}{asked.whole.range}))"
    joules = total(identity, counted(_joules(asked), span, side))
    each = f"({units} * on ({listed(identity)}) group_left () {joules})"
    yield total((*asked.labels, "unit"), _with_labels(asked, each, _all_of_runs(asked), identity))


def grams(asked: Asked, span: Span, side: Side) -> Iterator[str]:
    """By basis, quality and the keys: of a run's emissions the part that its attributed energy is of its devices'.

    Of a run that ended before the span or soon in it, what it had before is by joules: grams are booked seconds later.
    """
    part = _grams(asked, span, side)
    if side == "before":
        of = RUN if asked.recorded else (*RUN, "component")
        ended = f"({_ends(asked)} < time() - {(span.from_ms - _SOON_MS) / 1_000:.3f})"
        joules = [total(of, counted(_joules(asked), *when)) for when in ((span, "before"), (asked.whole, "until"))]
        share = f"({joules[0]} / ({joules[1]} > 0) and on ({listed(RUN)}) {ended})"
        by_joules = f"({_grams(asked, asked.whole, 'until')} * on ({listed(of)}) group_left () {share})"
        part = f"({by_joules} or {part})"
    yield total((*asked.labels, *_BASIS), _with_labels(asked, part, _all_of_runs(asked), RUN))


def _grams(asked: Asked, span: Span, side: Side) -> str:
    """By run, basis and quality, and by component where that is not recorded as a sum."""
    if asked.recorded:
        return counted(Counter(recorded.RUN_GRAMS, _BASIS, "", recorded.BEHIND_MS), span, side)
    of = (*RUN, "component")
    emitted = counted(Counter(m.RUN_EMISSIONS.name, ("component", *_BASIS)), span, side)
    energy = total(of, counted(Counter(m.RUN_ENERGY.name, _DEVICE), asked.whole, "until"))
    share = f"({total(of, counted(_joules(asked), asked.whole, 'until'))} / ({energy} > 0))"
    return f"({emitted} * on ({listed(of)}) group_left () {share})"


def device_grams(asked: Asked, span: Span) -> Iterator[str]:
    """Of all devices, by basis and quality."""
    if asked.recorded:
        yield total(_BASIS, recorded_rise(recorded.GRAMS, span, recorded.BEHIND_MS))
        return
    yield total(_BASIS, rise(Counter(m.EMISSIONS.name, ("instance", *_DEVICE, *_BASIS)), span, asked.dialect))


def number(asked: Asked) -> str:
    """How many runs there were, by the keys; those that had ended before the window are shown within it, too."""
    over = f"({_ends(asked)} < time() - {asked.whole.from_ms / 1_000:.3f})"
    seen = f"({_info(asked, _all_of_runs(asked), RUN)}) unless on ({listed(RUN)}) {over}"
    return f"count by ({listed(asked.labels)}) (group by ({listed(('run_id', *asked.labels))}) ({seen}))"


def _ends(asked: Asked) -> str:
    """When runs ended, by run; those alone that have."""
    return most(RUN, f"max_over_time({m.RUN_END.name}{asked.whole.range})")


def any_pods(span: Span) -> str:
    """Whether a kubelet told of any pod in the last day."""
    lately = Span(min(span.long_ms, _DAY_MS), span.until_ms)
    return f"count(last_over_time({m.GPU_POD_INFO.name}{lately.range}))"


def _joules(asked: Asked, which: str = "") -> Counter:
    """Attributed: by run and device, or by run and component where that is recorded."""
    if asked.recorded:
        return Counter(recorded.RUN_JOULES, ("component",), "", recorded.BEHIND_MS)
    return Counter(m.RUN_ATTRIBUTED_ENERGY.name, _DEVICE, f'run_id!="",policy="{asked.policy}"{which}')


def _all_of_runs(asked: Asked) -> tuple[str, ...]:
    return (*asked.run_labels, GPU_MODEL) if GPU_MODEL in asked.by else asked.run_labels


def _components(asked: Asked) -> list[tuple[str, bool]]:
    """More matchers, and whether what they take are GPUs whose model is a key."""
    return [(',component="gpu"', True), (',component!="gpu"', False)] if GPU_MODEL in asked.by else [("", False)]


def _with_model(asked: Asked, values: str) -> str:
    """By its device each gets its GPU's model, where that is a key."""
    if GPU_MODEL not in asked.by:
        return values
    named = most(("instance", "uuid", "name"), f"max_over_time({m.GPU_INFO.name}{asked.whole.range})")
    models = renamed(renamed(f"topk by (instance, uuid) (1, {named})", "device", "uuid"), GPU_MODEL, "name")
    return f"({values} * on (instance, device) group_left ({GPU_MODEL}) {models})"


def _with_labels(asked: Asked, values: str, labels: Sequence[str], identity: Sequence[str]) -> str:
    if not labels:
        return values
    return f"{values} * on ({listed(identity)}) group_left ({listed(labels)}) {_info(asked, labels, identity)}"


def _info(asked: Asked, labels: Sequence[str], identity: Sequence[str]) -> str:
    """1 for each run, with its labels; where nodes disagree about them, one's. Of several models of GPUs, too."""
    info = f"max_over_time({m.RUN_INFO.name}{asked.whole.range})"
    if NAMESPACE in labels and asked.pods:
        bare = f'max_over_time({m.RUN_INFO.name}{{{NAMESPACE}=""}}{asked.whole.range})'
        info = _joined(bare, NAMESPACE, renamed(_of_runs("namespace", _pods(asked)), NAMESPACE, "namespace"), info)
    if GPU_MODEL in labels:
        gpus = most((*RUN, "uuid"), f"max_over_time({m.RUN_GPU_INFO.name}{asked.whole.range})")
        models = _of_runs(GPU_MODEL, _with_model(asked, renamed(gpus, "device", "uuid")))
        known = most((*RUN, *(name for name in labels if name != GPU_MODEL)), info)
        info = _joined(known, GPU_MODEL, models, known)
    return f"topk by ({listed(identity)}) (1, {most((*identity, *labels), info)})"


def _joined(values: str, label: str, others: str, else_: str) -> str:
    """The runs' values with the label of others; where there is none, else."""
    on = f"on ({listed(RUN)})"
    return f"({values} * {on} group_left ({label}) ({others})) or {on} {else_}"


def _of_runs(label: str, values: str) -> str:
    return f"topk by ({listed(RUN)}) (1, {most((*RUN, label), values)})"


def _pods(asked: Asked) -> str:
    """The namespaces of the pods that had a run's GPUs while it was shown: a GPU changes hands, so step by step."""
    pods = f"topk by (instance, uuid) (1, {most(('instance', 'uuid', 'namespace'), m.GPU_POD_INFO.name)})"
    held = f"{m.RUN_GPU_INFO.name} * on (instance, uuid) group_left (namespace) {pods}"
    step = f"[{asked.whole.long_ms}ms:{_PODS_STEP}]"
    return f"max_over_time(({held}){step})"
