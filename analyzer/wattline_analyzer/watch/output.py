"""Live table and live document of nodes, GPUs, open runs and carbon intensity."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from wattline.command_line import escaped_line
from wattline.contract.api import OUTCOMES
from wattline.contract.work import SHARE_POLICY, noun_of_one
from wattline.figures import Figure, energy_of_one_text, energy_text, significant_text
from wattline_analyzer.core import units
from wattline_analyzer.core.devices import SIMULATED
from wattline_analyzer.core.documents import energy_by_component, quantity
from wattline_analyzer.watch.model import LiveGpu, LiveNode, LiveRun, WatchState

_NEAR_LIMIT = 0.97
_LEAST_NAME = 12
_WORDS = ("node", "GPU", "clock event", "run", "state")
_SHORT = {"gpu_idle": "idle", "hw_power_brake_slowdown": "power brake", "sw_power_cap": "power cap"}
_STYLES = {
    "running": "",
    "ok": "green",
    "failed": "bold red",
    "interrupted": "yellow",
    "stale": "yellow",
}


def live_table(state: WatchState, source: str, width: int, trouble: str = "") -> RenderableType:
    """Return the table for a terminal of `width` columns; `trouble` is why the source cannot be
    read now.
    """
    parts: list[RenderableType] = [_heading(state, source)]
    parts += [
        Text(line, "bold yellow") for line in ([trouble] if trouble else []) + list(_notes(state))
    ]
    if state.gpus:
        parts += [Text(), _gpus(state, width)]
        parts += [Text(f"energy: {text}", "dim") for text in _energy_notes(state)]
    if state.runs:
        parts += [Text(), _runs(state, width)]
        parts += [Text(f"per unit: {text}", "dim") for text in _per_unit_notes(state)]
        parts += [Text(text, "dim") for text in _ended_notes(state)]
    carbon = list(_carbon(state))
    if carbon:
        parts += [Text(), *carbon]
    return Group(*parts)


def _energy_notes(state: WatchState) -> Iterator[str]:
    known = [gpu for gpu in state.gpus if gpu.energy_j is not None]
    of_runs = "of the oldest run on the GPU" if any(gpu.energy_of for gpu in known) else ""
    since = "since the start of this table" if any(not gpu.energy_of for gpu in known) else ""
    if known:
        yield "; else ".join(filter(None, (of_runs, since)))


def _per_unit_notes(state: WatchState) -> Iterator[str]:
    """Yield notes that state the phases and devices in the energy per unit."""
    known = [run for run in state.runs if run.energy_per_unit is not None]
    phases = dict.fromkeys(name for run in known for name in run.phases)
    if any(not run.phases for run in known) and phases:
        yield (
            f"the whole run so far; of an ended run the phase {' or '.join(phases)}, in which "
            "the work was done"
        )
    elif phases:
        yield f"the phase {' or '.join(phases)}, in which the work was done"
    if any(run.shared for run in known):
        yield f"* attributed to the run by {SHARE_POLICY}, since others use its devices as well"


def _ended_notes(state: WatchState) -> Iterator[str]:
    """Yield how to report the ended runs of the table."""
    ended = [run.run_id for run in state.runs if run.state in OUTCOMES]
    if ended:
        yield f"ended: analyzer report --run-id {ended[0] if len(ended) == 1 else 'ID'}"


def _heading(state: WatchState, source: str) -> Text:
    at = datetime.fromtimestamp(state.at_s).astimezone()
    text = Text.assemble(
        (f"{at:%Y-%m-%d %H:%M:%S %z}", "bold"), f"  {source}", overflow="ellipsis", no_wrap=True
    )
    if any(gpu.name.startswith(SIMULATED) for gpu in state.gpus):
        text.append("  SIMULATED", "bold yellow")
    if state.power_w is not None:
        live = sum(gpu.power_w is not None for gpu in state.gpus)
        text.append(f"  {live} GPU{'s' if live > 1 else ''}  {state.power_w:,.0f} W", "bold")
    return text


def _notes(state: WatchState) -> Iterator[str]:
    several = len(state.nodes) > 1
    for alias, first in state.aliases.items():
        yield (
            f"{alias} is not shown: it has the same GPUs as {first}, as the same exporter under "
            "another address does"
        )
    for node in state.nodes:
        name = f"{node.instance}: " if several or node.instance else ""
        if node.stale:
            yield (
                f"{name}no sample for {_duration(node.age_s)}: the exporter is down, or it is "
                "not scraped"
            )
        elif node.age_s > max(node.interval_s, 2.0) * 1.5:
            yield f"{name}the newest sample is {node.age_s:.0f} s old"
        for source in node.down:
            if source == "nvml":
                yield f"{name}source {source} is down; run `exporter check` on the node"
    for node in state.nodes:
        down = [gpu.gpu for gpu in state.gpus if gpu.instance == node.instance and gpu.up is False]
        if down:
            yield f"{f'{node.instance}: ' if several else ''}no response from GPU {', '.join(down)}"


def _gpus(state: WatchState, width: int) -> Table:
    nodes = {node.instance: node for node in state.nodes}
    of_j = units.largest(gpu.energy_j for gpu in state.gpus)
    rows = [
        [gpu.instance, gpu.gpu, *(_unavailable(gpu, nodes[gpu.instance]) or _values(gpu, of_j))]
        for gpu in state.gpus
    ]
    heads = [
        "node",
        "GPU",
        "W / limit",
        "energy",
        "util",
        "GiB",
        "°C",
        "SM MHz",
        "clock event",
        "run",
    ]
    if len(state.nodes) == 1:
        heads = heads[1:]
        rows = [row[1:] for row in rows]
    return _fitted(heads, rows, width, ("GiB", "SM MHz", "°C"))


def _fitted(
    heads: Sequence[str], rows: Sequence[Sequence[Text | str]], width: int, spare: Sequence[str]
) -> Table:
    """Return a table that truncates no figure: run names are shortened first, then the `spare`
    columns are left out.
    """
    widths = {
        head: max(len(head), *(len(row[at]) for row in rows)) for at, head in enumerate(heads)
    }
    shown = list(heads)
    for one in (*spare, None):
        room = width - sum(widths[head] + 1 for head in shown if head != "run")
        if room >= _LEAST_NAME or one is None:
            break
        shown.remove(one)
    table = Table(box=None, padding=(0, 1, 0, 0), header_style="dim", show_edge=False)
    for head in shown:
        most = max(min(room, widths[head]), _LEAST_NAME) if head == "run" else widths[head]
        table.add_column(
            head,
            justify="left" if head in _WORDS else "right",
            no_wrap=True,
            min_width=most,
            max_width=most,
        )
    for row in rows:
        table.add_row(*(row[heads.index(head)] for head in shown))
    return table


def _unavailable(gpu: LiveGpu, node: LiveNode) -> list[Text | str]:
    word = "stale" if node.stale else "down" if gpu.up is False else ""
    return [*(["–"] * 6), Text(word, "bold yellow"), ""] if word else []


def _values(gpu: LiveGpu, of_j: float) -> list[Text | str]:
    near = (
        gpu.power_w is not None
        and gpu.limit_w is not None
        and gpu.power_w >= _NEAR_LIMIT * gpu.limit_w
    )
    used, total = (
        None if x is None else x / 2**30 for x in (gpu.memory_used_bytes, gpu.memory_total_bytes)
    )
    on_it = ", ".join([*gpu.runs, *(f"({name})" for name in gpu.processes)])
    return [
        Text(f"{_whole(gpu.power_w)} / {_whole(gpu.limit_w)}", "yellow" if near else ""),
        "–" if gpu.energy_j is None else energy_text(Figure(gpu.energy_j), of_j),
        "–" if gpu.utilization is None else f"{100 * gpu.utilization:.0f} %",
        f"{_whole(used)}/{_whole(total)}",
        _whole(gpu.temperature_celsius),
        _whole(None if gpu.sm_clock_hz is None else gpu.sm_clock_hz / 1e6),
        Text(", ".join(reason_name(one) for one in gpu.clock_events), "yellow"),
        on_it,
    ]


def reason_name(name: str) -> str:
    """Return a short name of a clock event reason."""
    return _SHORT.get(
        name,
        name.replace("sw_", "").replace("hw_", "HW ").replace("_slowdown", "").replace("_", " "),
    )


def _whole(value: float | None) -> str:
    return "–" if value is None else f"{value:.0f}"


def _runs(state: WatchState, width: int) -> Table:
    heads = ("run", "state", "duration", "energy", "per unit", "rate")
    of_j = units.largest(_used(run) for run in state.runs)
    return _fitted(heads, [_run(run, of_j) for run in state.runs], width, ("duration",))


def _used(run: LiveRun) -> Figure | None:
    return run.energy.get("gpu") or run.energy.get("cpu")


def _run(run: LiveRun, of_j: float) -> list[Text | str]:
    used = _used(run)
    per_unit = run.energy_per_unit
    return [
        escaped_line(f"{run.run_id} {run.workload}"),
        Text(run.state, _STYLES.get(run.state, "")),
        "–" if run.duration_s is None else _duration(run.duration_s),
        "–"
        if used is None
        else energy_text(used, of_j, half=False) + ("" if "gpu" in run.energy else " CPU"),
        "–" if per_unit is None else _per_unit(run, per_unit) + ("*" if run.shared else ""),
        "–"
        if run.per_second is None or run.unit is None
        else f"{significant_text(run.per_second)}/s",
    ]


def _duration(seconds: float) -> str:
    """Return whole seconds: `12 s`, `2 min 5 s`."""
    hours, rest = divmod(round(seconds), 3_600)
    parts = ((hours, "h"), (rest // 60, "min"), (rest % 60, "s"))
    known = [f"{value} {unit}" for value, unit in parts if value]
    return " ".join(known) or "0 s"


def _per_unit(run: LiveRun, each: Figure) -> str:
    """Return `437 ± 28 J/step`; the half-width covers random error and sensor accuracy."""
    used = _used(run)
    text = energy_of_one_text(each if used is None else each.with_accuracy_of(used))
    return f"{text}/{noun_of_one(run.unit or '')}"


def _carbon(state: WatchState) -> Iterator[Text]:
    several = len(state.nodes) > 1
    for one in state.carbon:
        name = f"{one.instance}: " if several else ""
        what = {"gpu": "GPUs", "cpu": "CPUs"}.get(one.component, "")
        emits = (
            f"{significant_text(one.grams_per_hour)} g/h from {what}"
            if one.grams_per_hour is not None
            else ""
        )
        grid = f"{one.grams_per_kwh:.0f} gCO₂eq/kWh ({one.region}, {one.basis}, {one.quality})"
        yield Text(f"{name}carbon intensity {grid}{': ' if emits else ''}{emits}", "dim")


def live_document(state: WatchState, source: str) -> dict[str, Any]:
    return {
        "t_unix_seconds": state.at_s,
        "source": source,
        "gpu_power_watts": state.power_w,
        "nodes": [
            {
                "instance": node.instance,
                "newest_sample_unix_seconds": node.seen_s,
                "age_seconds": node.age_s,
                "scrape_interval_seconds": node.interval_s,
                "stale": node.stale,
                "sources_down": list(node.down),
            }
            for node in state.nodes
        ],
        "gpus": [live_gpu_record(gpu) for gpu in state.gpus],
        "runs": [_run_record(run) for run in state.runs],
        "carbon": [
            {
                "instance": one.instance,
                "region": one.region,
                "basis": one.basis,
                "quality": one.quality,
                "intensity_grams_per_kilowatt_hour": one.grams_per_kwh,
                "component": one.component,
                "emissions_grams_per_hour": one.grams_per_hour,
            }
            for one in state.carbon
        ],
        "aliases": dict(state.aliases),
    }


def live_gpu_record(gpu: LiveGpu) -> dict[str, Any]:
    return {
        "instance": gpu.instance,
        "gpu": gpu.gpu,
        "uuid": gpu.uuid,
        "name": gpu.name,
        "up": gpu.up,
        "power_watts": gpu.power_w,
        "power_limit_watts": gpu.limit_w,
        "energy_joules": gpu.energy_j,
        "energy_of_run": gpu.energy_of or None,
        "counter_joules": gpu.counter_j,
        "utilization_ratio": gpu.utilization,
        "memory_used_bytes": gpu.memory_used_bytes,
        "memory_total_bytes": gpu.memory_total_bytes,
        "temperature_celsius": gpu.temperature_celsius,
        "sm_clock_hertz": gpu.sm_clock_hz,
        "clock_events": list(gpu.clock_events),
        "processes": list(gpu.processes),
        "runs": list(gpu.runs),
    }


def _run_record(run: LiveRun) -> dict[str, Any]:
    return {
        "run_id": run.run_id,
        "workload": run.workload,
        "state": run.state,
        "instances": list(run.instances),
        "duration_seconds": run.duration_s,
        **energy_by_component(run.energy),
        "unit": run.unit,
        "work": run.amount,
        "units_per_second": run.per_second,
        **quantity(run.energy_per_unit, "energy_per_unit", "joules"),
        "energy_per_unit_phases": list(run.phases),
        "energy_per_unit_is_attributed": run.shared,
    }
