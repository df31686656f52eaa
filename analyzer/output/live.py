"""The live table: nodes, their GPUs, their open runs, and the grid, in 80 columns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from analyzer.energy.devices import SIMULATED
from analyzer.live.samples import Glance, GpuNow, NodeNow, RunNow
from analyzer.model.interval import Interval
from analyzer.output import units

_NEAR_LIMIT = 0.97
_LEAST_NAME = 12
_WORDS = ("node", "GPU", "held by", "run", "state")
_SHORT = {"gpu_idle": "idle", "hw_power_brake_slowdown": "power brake", "sw_power_cap": "power cap"}
_STYLES = {"running": "", "ok": "green", "failed": "bold red", "interrupted": "yellow", "stale": "yellow"}


def live_table(glance: Glance, source: str, width: int, trouble: str = "") -> RenderableType:
    """`width` is in columns. `trouble` is why the source could not be read now: all that is shown is from before."""
    parts: list[RenderableType] = [_heading(glance, source)]
    parts += [Text(line, "bold yellow") for line in ([trouble] if trouble else []) + list(_notes(glance))]
    if glance.gpus:
        parts += [Text(), _gpus(glance, width)]
        parts += [Text(f"energy: {text}", "dim") for text in _energy_of(glance)]
    if glance.runs:
        parts += [Text(), _runs(glance, width)]
    carbon = list(_carbon(glance))
    if carbon:
        parts += [Text(), *carbon]
    return Group(*parts)


def _energy_of(glance: Glance) -> Iterator[str]:
    known = [gpu for gpu in glance.gpus if gpu.energy_j is not None]
    of_runs = "of the oldest run on the GPU" if any(gpu.energy_of for gpu in known) else ""
    since = "since this table began" if any(not gpu.energy_of for gpu in known) else ""
    if known:
        yield ", else ".join(filter(None, (of_runs, since)))


def _heading(glance: Glance, source: str) -> Text:
    at = datetime.fromtimestamp(glance.at_s).astimezone()
    text = Text.assemble((f"{at:%Y-%m-%d %H:%M:%S}", "bold"), f"  {source}", overflow="ellipsis", no_wrap=True)
    if any(gpu.name.startswith(SIMULATED) for gpu in glance.gpus):
        text.append("  SIMULATED", "bold yellow")
    if glance.power_w is not None:
        live = sum(gpu.power_w is not None for gpu in glance.gpus)
        text.append(f"  {live} GPU{'s' if live > 1 else ''}  {glance.power_w:,.0f} W", "bold")
    return text


def _notes(glance: Glance) -> Iterator[str]:
    several = len(glance.nodes) > 1
    for node in glance.nodes:
        name = f"{node.instance}: " if several or node.instance else ""
        if node.stale:
            yield f"{name}no sample for {_duration(node.age_s)}: its exporter is down, or it is not scraped"
        elif node.age_s > max(node.interval_s, 2.0) * 1.5:
            yield f"{name}the newest sample is {node.age_s:.0f} s old"
        for source in node.down:
            if source == "nvml":
                yield f"{name}source {source} is down; see on the node: exporter check"
    for node in glance.nodes:
        mute = [gpu.gpu for gpu in glance.gpus if gpu.instance == node.instance and gpu.up is False]
        if mute:
            verb = "does" if len(mute) == 1 else "do"
            yield f"{f'{node.instance}: ' if several else ''}GPU {', '.join(mute)} {verb} not answer"


def _gpus(glance: Glance, width: int) -> Table:
    nodes = {node.instance: node for node in glance.nodes}
    of_j = units.largest(gpu.energy_j for gpu in glance.gpus)
    rows = [[gpu.instance, gpu.gpu, *(_dead(gpu, nodes[gpu.instance]) or _alive(gpu, of_j))] for gpu in glance.gpus]
    heads = ["node", "GPU", "W / limit", "energy", "util", "GiB", "°C", "SM MHz", "held by", "run"]
    if len(glance.nodes) == 1:
        heads, rows = heads[1:], [row[1:] for row in rows]
    return _fitted(heads, rows, width, ("GiB", "SM MHz", "°C"))


def _fitted(heads: Sequence[str], rows: Sequence[Sequence[Text | str]], width: int, spare: Sequence[str]) -> Table:
    """A figure is never cut: where all do not fit, the run's name is shortened, and then `spare` columns go."""
    widths = {head: max(len(head), *(len(row[at]) for row in rows)) for at, head in enumerate(heads)}
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
            head, justify="left" if head in _WORDS else "right", no_wrap=True, min_width=most, max_width=most
        )
    for row in rows:
        table.add_row(*(row[heads.index(head)] for head in shown))
    return table


def _dead(gpu: GpuNow, node: NodeNow) -> list[Text | str]:
    word = "stale" if node.stale else "down" if gpu.up is False else ""
    return [*(["–"] * 6), Text(word, "bold yellow"), ""] if word else []


def _alive(gpu: GpuNow, of_j: float) -> list[Text | str]:
    near = gpu.power_w is not None and gpu.limit_w is not None and gpu.power_w >= _NEAR_LIMIT * gpu.limit_w
    used, total = (None if x is None else x / 2**30 for x in (gpu.memory_used_bytes, gpu.memory_total_bytes))
    on_it = ", ".join([*gpu.runs, *(f"({name})" for name in gpu.processes)])
    return [
        Text(f"{_whole(gpu.power_w)} / {_whole(gpu.limit_w)}", "yellow" if near else ""),
        "–" if gpu.energy_j is None else units.plain_energy(gpu.energy_j, of_j),
        "–" if gpu.utilization is None else f"{100 * gpu.utilization:.0f} %",
        f"{_whole(used)}/{_whole(total)}",
        _whole(gpu.temperature_celsius),
        _whole(None if gpu.sm_clock_hz is None else gpu.sm_clock_hz / 1e6),
        Text(", ".join(reason(one) for one in gpu.held_by), "yellow"),
        on_it,
    ]


def reason(name: str) -> str:
    """Of a clock event, as people say it."""
    return _SHORT.get(name, name.replace("sw_", "").replace("hw_", "HW ").replace("_slowdown", "").replace("_", " "))


def _whole(value: float | None) -> str:
    return "–" if value is None else f"{value:.0f}"


def _runs(glance: Glance, width: int) -> Table:
    heads = ("run", "state", "duration", "energy", "per unit", "rate")
    of_j = units.largest(_used(run) for run in glance.runs)
    return _fitted(heads, [_run(run, of_j) for run in glance.runs], width, ("duration",))


def _used(run: RunNow) -> Interval | None:
    return run.energy.get("gpu") or run.energy.get("cpu")


def _run(run: RunNow, of_j: float) -> list[Text | str]:
    used = _used(run)
    per_unit = run.energy_per_unit_j
    return [
        f"{run.run_id} {run.workload}",
        Text(run.state, _STYLES.get(run.state, "")),
        "–" if run.duration_s is None else _duration(run.duration_s),
        "–" if used is None else units.plain_energy(used.value, of_j) + ("" if "gpu" in run.energy else " CPU"),
        "–" if per_unit is None or run.unit is None else _per_unit(per_unit, run.unit),
        "–" if run.per_second is None or run.unit is None else f"{units.number(run.per_second)}/s",
    ]


def _duration(seconds: float) -> str:
    """In whole seconds: `12 s`, `2 min 5 s`."""
    hours, rest = divmod(round(seconds), 3_600)
    parts = ((hours, "h"), (rest // 60, "min"), (rest % 60, "s"))
    known = [f"{value} {unit}" for value, unit in parts if value]
    return " ".join(known) or "0 s"


def _per_unit(joules: float, unit: str) -> str:
    factor, prefix = next(((f, p) for f, p in ((1.0, ""), (1e-3, "m"), (1e-6, "µ")) if joules >= f), (1e-9, "n"))
    return f"{units.number(joules / factor)} {prefix}J/{units.singular(unit).split()[-1]}"


def _carbon(glance: Glance) -> Iterator[Text]:
    several = len(glance.nodes) > 1
    for one in glance.carbon:
        name = f"{one.instance}: " if several else ""
        what = {"gpu": "its GPUs", "cpu": "its CPUs"}.get(one.component, "")
        emits = f"{units.number(one.grams_per_hour)} g/h by {what}" if one.grams_per_hour is not None else ""
        grid = f"{one.grams_per_kwh:.0f} gCO₂eq/kWh ({one.region}, {one.basis}, {one.quality})"
        yield Text(f"{name}grid now {grid}{': ' if emits else ''}{emits}", "dim")
