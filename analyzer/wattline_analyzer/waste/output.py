"""Output of `analyzer waste`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from wattline.figures import JOULES_PER_KWH, Figure, energy_text, significant_text
from wattline_analyzer.core import units
from wattline_analyzer.core.run_report import Price
from wattline_analyzer.core.tables import (
    Cell,
    Column,
    CommandOutput,
    Table,
    energy_cell,
    figure_columns,
    grams_cell,
    number_cell,
    ratio_cell,
    text_cell,
    watts_cell,
)
from wattline_analyzer.waste.model import (
    CLASSES,
    IDLE,
    GpuEvidence,
    Holder,
    Thresholds,
    Waste,
    WasteClass,
    WasteFinding,
    sum_known,
)

_TITLES = dict(
    zip(
        CLASSES,
        ("execution-idle", "held, idle", "clocks stuck", "throttled", "limit left", "unclaimed"),
        strict=True,
    )
)
_NAMED_GPUS = 8
_CSV_HEADER = (
    "class",
    "instance",
    "holders",
    "gpus",
    "gpu_seconds",
    "energy_joules",
    "waste_joules",
    "waste_low_joules",
    "waste_high_joules",
    "cost",
    "emissions_grams",
    "mean_power_watts",
    "utilization_ratio",
    "clock_ratio",
    "ongoing",
    "command",
)


def waste_output(
    waste: Waste, window_s: tuple[float, float], limits: Thresholds, price: Price | None, top: int
) -> CommandOutput:
    """Return the `top` findings by waste; JSON, YAML and CSV have all of them."""
    shown = waste.findings[:top]
    titles = ["GPU hours", "Waste", "Mean power", "Use", "Clock"]
    if any(finding.grams is not None for finding in shown):
        titles.append("CO₂eq")
    if price:
        titles.append(price.currency or "Cost")
    columns = [
        *(Column(title, text=True) for title in ("Class", "Node", "Holder", "GPU index")),
        *figure_columns(*titles),
        Column("State", text=True),
    ]
    rows = [_row(finding, titles, price, shown) for finding in shown]
    parts: list[str | Table] = [_headline(waste, window_s, price)]
    if rows:
        parts += [Table("", columns, rows), _commands(shown)]
    parts += _notes(waste, limits, top)
    return CommandOutput(
        parts,
        _document(waste, window_s, limits, price),
        [_flat(one, price) for one in waste.findings],
        _CSV_HEADER,
    )


def _headline(waste: Waste, window_s: tuple[float, float], price: Price | None) -> str:
    idle_j = waste.idle_waste.number
    others_j = waste.total_j([kind for kind in CLASSES if kind not in IDLE])
    lines = [units.span(*window_s)]
    lines.append(
        f"{waste.gpus} GPU{'' if waste.gpus == 1 else 's'}, {waste.gpu_seconds / 3_600:,.1f} GPU "
        "hours with samples, "
        f"{energy_text(Figure(waste.energy_j))}"
    )
    if not waste.findings:
        return "\n".join([*lines, "no waste found"])
    share = f", {units.percent(idle_j / waste.energy_j)} of all energy" if waste.energy_j else ""
    money = (
        f", {significant_text(price.per_kwh * idle_j / JOULES_PER_KWH)} {price.currency}".rstrip()
        if price
        else ""
    )
    lines.append(f"idle GPUs above deep-idle power: {energy_text(waste.idle_waste)}{share}{money}")
    if others_j:
        lines.append(
            f"slowed or unclaimed GPUs above deep-idle power: {energy_text(Figure(others_j))}, of "
            "which some did work"
        )
    return "\n".join(lines)


def _row(
    finding: WasteFinding, titles: Sequence[str], price: Price | None, shown: Sequence[WasteFinding]
) -> list[Cell]:
    largest_j = units.largest(one.waste_j for one in shown)
    waste = energy_cell(
        None if finding.waste_j is None else Figure(finding.waste_j, finding.half_j), largest_j
    )
    if finding.kind not in IDLE and not waste.absent:
        waste = Cell(f"≤ {waste.text}", waste.value, "J", low=0.0, high=finding.waste_j)
    cells = {
        "GPU hours": number_cell(finding.seconds / 3_600),
        "Waste": waste,
        "Mean power": watts_cell(finding.energy_j / finding.seconds),
        "Use": ratio_cell(_mean(finding, "utilization_ratio")),
        "Clock": ratio_cell(_mean(finding, "clock_ratio")),
        "CO₂eq": grams_cell(finding.grams, units.largest(one.grams for one in shown)),
    }
    if price:
        cells[price.currency or "Cost"] = number_cell(finding.cost(price.per_kwh))
    return [
        *(
            text_cell(text)
            for text in (_class(finding), finding.instance, _holder_text(finding), _gpus(finding))
        ),
        *(cells[title] for title in titles),
        text_cell(
            "ongoing"
            if finding.ongoing
            else f"until {units.moment(max(one.last_s for one in finding.gpus))[:16]}"
        ),
    ]


def _class(finding: WasteFinding) -> str:
    """Return the class, with the limit that was left."""
    limits = {
        (gpu.limit_w, gpu.default_limit_w)
        for gpu in finding.gpus
        if finding.kind is WasteClass.LIMIT_LEFT
    }
    low = sorted(
        (limit, default) for limit, default in limits if limit and default and limit < default
    )
    more = f" ({low[0][0]:g} of {low[0][1]:g} W)" if low else " (clock)" if limits else ""
    return f"{_TITLES[finding.kind]}{more}"


def _mean(finding: WasteFinding, name: str) -> float | None:
    """Return the mean over time of a quantity of all GPUs."""
    products = [_product(gpu, name) for gpu in finding.gpus]
    total = sum_known(products)
    return None if total is None else total / finding.seconds


def _product(gpu: GpuEvidence, name: str) -> float | None:
    value: float | None = getattr(gpu, name)
    return None if value is None else value * gpu.seconds


def _holder_text(finding: WasteFinding) -> str:
    return ", ".join(holder_text(holder) for holder in finding.holders)


def holder_text(holder: Holder) -> str:
    """Return `run ID (user NAME)` or `pod NAMESPACE/NAME`."""
    user = holder.label("user")
    return f"{holder.kind} {holder.name}{f' (user {user})' if user else ''}"


def _gpus(finding: WasteFinding) -> str:
    names = [gpu.index or gpu.gpu.uuid for gpu in finding.gpus]
    more = f" and {len(names) - _NAMED_GPUS} more" if len(names) > _NAMED_GPUS else ""
    return f"{', '.join(names[:_NAMED_GPUS])}{more}"


def _commands(shown: Sequence[WasteFinding]) -> str:
    lines = []
    for finding in shown:
        if finding.command:
            where = (
                f" on {finding.instance}"
                if finding.instance and finding.command.startswith("nvidia-smi")
                else ""
            )
            lines.append(f"{_TITLES[finding.kind]}, GPU {_gpus(finding)}{where}: {finding.command}")
    return (
        "\n".join(["commands:", *dict.fromkeys(lines)])
        if lines
        else "no command: no finding is ongoing"
    )


def _notes(waste: Waste, limits: Thresholds, top: int) -> list[str]:
    notes = []
    if len(waste.findings) > top:
        notes.append(
            f"showing {top} of {len(waste.findings)} findings; --top {len(waste.findings)} shows "
            "all"
        )
    notes += [f"missing: {line}" for line in waste.missing]
    if waste.findings:
        least = f"{limits.min_s / 60:g} min" if limits.min_s >= 60 else f"{limits.min_s:g} s"
        notes.append(
            f"waste: energy above the GPU's own deep-idle power, in states of at least {least}; "
            "±: 95 % confidence interval; ≤: an upper bound, because the GPU worked. No second of "
            "a GPU counts twice."
        )
    return notes


def _document(
    waste: Waste, window_s: tuple[float, float], limits: Thresholds, price: Price | None
) -> dict[str, Any]:
    return {
        "version": 1,
        "start_unix_seconds": window_s[0],
        "end_unix_seconds": window_s[1],
        "minimum_duration_seconds": limits.min_s,
        "gpus": waste.gpus,
        "gpu_seconds": waste.gpu_seconds,
        "energy_joules": waste.energy_j,
        "idle_waste_joules": waste.idle_waste.value,
        "idle_waste_uncertainty_joules": waste.idle_waste.half_width,
        "waste_joules_by_class": {kind.value: waste.total_j([kind]) for kind in CLASSES},
        "price_per_kilowatt_hour": price.per_kwh if price else None,
        "currency": (price.currency or None) if price else None,
        "findings": [_record(finding, price) for finding in waste.findings],
        "missing": list(waste.missing),
    }


def _record(finding: WasteFinding, price: Price | None) -> dict[str, Any]:
    return {
        **_flat(finding, price),
        "holders": [
            {"kind": holder.kind, "name": holder.name, "labels": dict(holder.labels)}
            for holder in finding.holders
        ],
        "gpus": [
            {
                "gpu": gpu.index,
                "uuid": gpu.gpu.uuid,
                "seconds": gpu.seconds,
                "energy_joules": gpu.energy_j,
                "deep_idle_energy_joules": gpu.idle_j,
                "waste_joules": gpu.waste_j,
                "waste_uncertainty_joules": gpu.half_j if finding.kind in IDLE else None,
                "emissions_grams": gpu.grams,
                "first_unix_seconds": gpu.first_s,
                "last_unix_seconds": gpu.last_s,
                "ongoing": gpu.ongoing,
                "utilization_ratio": gpu.utilization_ratio,
                "clock_ratio": gpu.clock_ratio,
                "power_limit_watts": gpu.limit_w,
                "default_power_limit_watts": gpu.default_limit_w,
            }
            for gpu in finding.gpus
        ],
    }


def _flat(finding: WasteFinding, price: Price | None) -> dict[str, Any]:
    """Return one row of the CSV."""
    low_j, high_j = finding.limits_j or (None, None)
    return {
        "class": finding.kind.value,
        "instance": finding.instance,
        "holders": _holder_text(finding),
        "gpus": " ".join(gpu.gpu.uuid for gpu in finding.gpus),
        "gpu_seconds": finding.seconds,
        "energy_joules": finding.energy_j,
        "waste_joules": finding.waste_j,
        "waste_low_joules": low_j,
        "waste_high_joules": high_j,
        "cost": finding.cost(price.per_kwh) if price else None,
        "emissions_grams": finding.grams,
        "mean_power_watts": finding.energy_j / finding.seconds,
        "utilization_ratio": _mean(finding, "utilization_ratio"),
        "clock_ratio": _mean(finding, "clock_ratio"),
        "ongoing": finding.ongoing,
        "command": finding.command or None,
    }
