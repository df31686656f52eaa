"""Table of the hardware metrics of OpenTelemetry."""

from wattline_exporter.web.otlp_metrics import HARDWARE_METRICS, HardwareMetric


def conventions_table() -> str:
    """Return the table of the metrics of OpenTelemetry's semantic conventions."""
    rows = [
        "| metric | OpenTelemetry | instrument | unit | attributes |",
        "|---|---|---|---|---|",
    ]
    for one in HARDWARE_METRICS:
        only = "".join(f", {label} {', '.join(names)}" for label, names in one.values.items())
        rows.append(
            f"| `{one.metric.name}`{only} | `{one.name}` | {one.instrument} | {one.unit} | "
            f"{_attributes(one)} |"
        )
    return "\n".join(rows)


def _attributes(one: HardwareMetric) -> str:
    texts = [f"`{name}={text}`" for name, text in one.attributes.items()]
    by_value: dict[str, list[str]] = {}
    for names in one.values.values():
        for attributes in names.values():
            for name, value in attributes.items():
                by_value.setdefault(name, []).append(value)
    for name, values in by_value.items():
        choice = "\\|".join(values)
        texts.append(f"`{name}={choice}`")
    return ", ".join(texts)
