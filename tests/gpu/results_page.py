"""Markdown page of the measured figures (pure)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

Record = dict[str, Any]


def render_page(record: Record) -> str:
    title = ("SIMULATED, no measurement: " if record["simulated"] else "") + record["gpu"]["name"]
    lines = [
        f"# {title}",
        "",
        f"Driver {record['gpu']['driver']}, Python {record['python']}, {record['measured_on']}.",
    ]
    for section, lines_of in _SECTIONS.items():
        if section in record:
            lines += ["", *lines_of(record[section])]
    return "\n".join(lines) + "\n"


def _attach(results: Record) -> Iterator[str]:
    yield "## Attaching one GPU"
    yield ""
    yield (
        f"`nvmlInitWithFlags(NO_ATTACH)` took {results['no_attach_init_seconds'] * 1e3:.1f} ms, "
        f"`nvmlDeviceGetHandleByIndex` then took {results['attach_one_seconds'] * 1e3:.1f} ms, and "
        "the GPU responds."
    )


def _updates(results: Record) -> Iterator[str]:
    yield "## Update period of the sensor"
    yield ""
    rows = []
    for load, values in results.items():
        for name, period in values.items():
            if period is None:
                rows.append((load, name, "too few changes to determine", "", "", ""))
                continue
            spread = f"{period['p05_seconds'] * 1e3:.1f} to {period['p95_seconds'] * 1e3:.1f} ms"
            learned = period["learned_period_seconds"]
            shown = (
                f"{learned * 1e3:.3f} ± {period['learned_slack_seconds'] * 1e3:.3f} ms"
                if learned
                else "none"
            )
            rows.append(
                (
                    load,
                    name,
                    f"{period['median_seconds'] * 1e3:.1f} ms",
                    spread,
                    str(period["changes"]),
                    shown,
                )
            )
    yield from _table(
        ("load", "value", "median", "5 to 95 %", "changes", "period fitted by the exporter"), rows
    )


def _calls(results: Record) -> Iterator[str]:
    yield "## Cost of each NVML call"
    yield ""
    yield (
        f"One poll of energy and power: p50 {_us(results['poll'], 'p50')}, p99 "
        f"{_us(results['poll'], 'p99')}."
    )
    yield ""
    rows = [
        (
            f"`{name}`",
            _us(cost, "p50"),
            _us(cost, "p99"),
            "; ".join(f"{n} × {what}" for what, n in cost["raised"].items()),
        )
        for name, cost in results["functions"].items()
    ]
    yield from _table(("function", "p50", "p99", "raised"), rows)


def _energy(results: Record) -> Iterator[str]:
    yield "## Energy counter and integral of power"
    yield ""
    rows = []
    for load, sources in results.items():
        for tool, figures in sources.items():
            energies = [figures[f"{name}_joules"] for name in ("counter", "average", "instant")]
            rows.append(
                (
                    load,
                    tool,
                    f"{figures['seconds']:.1f} s",
                    *(_with_deviation(energy, energies[0]) for energy in energies),
                )
            )
    yield from _table(
        ("load", "read by", "time", "counter", "integral of average", "integral of instant"), rows
    )


def _with_deviation(energy_j: float | None, counter_j: float | None) -> str:
    if energy_j is None:
        return "not available"
    if not counter_j or energy_j == counter_j:
        return f"{energy_j:.1f} J"
    return f"{energy_j:.1f} J ({100 * (energy_j / counter_j - 1):+.2f} %)"


def _cost(results: Record) -> Iterator[str]:
    yield "## Cost of the exporter"
    yield ""
    rows = [
        ("CPU of a core, idle at 1 Hz", f"{100 * results['idle_cpu_ratio']:.2f} %"),
        ("CPU of a core, run open", f"{100 * results['run_cpu_ratio']:.2f} %"),
        ("memory of all processes, PSS", f"{results['pss_bytes'] / 1e6:.1f} MB"),
    ]
    yield from _table(("figure", f"{results['gpus']} GPU(s)"), rows)


def _samples(results: Record) -> Iterator[str]:
    yield "## Power samples of the driver"
    yield ""
    if not results["available"]:
        yield f"`nvmlDeviceGetSamples` is not available: {results['why']}."
    elif not results["count"]:
        yield "`nvmlDeviceGetSamples` is available and has no samples."
    else:
        step = (
            f" with a median interval of {results['median_step_seconds'] * 1e3:.1f} ms"
            if results["median_step_seconds"]
            else ""
        )
        yield (
            f"`nvmlDeviceGetSamples` gives {results['count']} samples over "
            f"{results['span_seconds']:.2f} s{step}."
        )


def _sgemm(results: Record) -> Iterator[str]:
    yield "## sgemm run as reported by the analyzer"
    yield ""
    energy, work = results["energy"]["gpu"], results["work"].get("flop", {})
    rows = [
        ("duration", f"{results['duration_seconds']:.2f} s"),
        (
            "GPU energy",
            f"{energy['energy_joules']:.1f} ± {energy['energy_uncertainty_joules']:.1f} J",
        ),
        ("integral", f"{results['gpu']['integrated_energy_joules']:.1f} J"),
    ]
    if work:
        rows.append(("speed", f"{work['per_second'] / 1e12:.2f} TFLOP/s"))
        if work["energy_per_unit_joules"]:
            rows.append(("efficiency", f"{1e-9 / work['energy_per_unit_joules']:.2f} GFLOP/J"))
    rows += [(f"finding: {finding['code']}", finding["text"]) for finding in results["findings"]]
    yield from _table(("figure", "value"), rows)


def _us(cost: Record, share: str) -> str:
    return f"{cost[f'{share}_seconds'] * 1e6:.0f} µs"


def _jobs(results: Record) -> Iterator[str]:
    yield "## Built-in jobs, small"
    yield ""
    rows = [
        (
            f"`{name}`",
            f"{job['amount']:.6g} {job['unit']}",
            f"{job['seconds']:.2f} s",
            f"{job['joules']:.1f} ± {job['uncertainty_joules']:.1f} J",
            f"{job['joules'] / job['amount']:.3g} J",
        )
        for name, job in results.items()
    ]
    yield from _table(("job", "work in `measure`", "time", "GPU energy", "per unit"), rows)


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> Iterator[str]:
    yield f"| {' | '.join(head)} |"
    yield f"|{'---|' * len(head)}"
    for row in rows:
        yield f"| {' | '.join(row)} |"


_SECTIONS = {
    "attach": _attach,
    "updates": _updates,
    "calls": _calls,
    "energy": _energy,
    "cost": _cost,
    "samples": _samples,
    "sgemm": _sgemm,
    "jobs": _jobs,
}
