"""Options of the requests that servers report."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated

import typer

from wattline_exporter.config.values import UsageError, parse_seconds

MAX_LABELS = 8
RESERVED_LABELS = ("instance", "job", "le", "model", "quantile", "role")

RateOption = Annotated[
    int,
    typer.Option(
        "--requests.max-per-second",
        min=1,
        max=100_000,
        metavar="N",
        help="Limit of the requests that servers report per second.",
    ),
]
WindowOption = Annotated[
    str | None,
    typer.Option(
        "--requests.window",
        help="Longest time after which a request can be reported, and for which its energy stays "
        "open.",
        metavar="TIME",
        show_default="2m",
    ),
]
LatenessOption = Annotated[
    str | None,
    typer.Option(
        "--requests.lateness",
        help="Time for which energies wait for reports that come later than the others; they are "
        "final later by this time.",
        metavar="TIME",
        show_default="0s",
    ),
]
TracesOption = Annotated[
    bool,
    typer.Option(
        "--otlp.traces",
        help="Accept OTLP traces of LLM servers at /v1/traces; their spans become requests.",
    ),
]
MetricsUrlOption = Annotated[
    str | None,
    typer.Option(
        "--otlp.metrics-url",
        help="URL of an OTLP/HTTP server to send all metrics to, such as "
        "http://HOST:4318/v1/metrics.",
        metavar="URL",
    ),
]
RequestLabelsOption = Annotated[
    str | None,
    typer.Option(
        "--requests.labels",
        help="Labels of requests that their metrics have, such as user,route.",
        metavar="NAME,...",
    ),
]


@dataclass(frozen=True, kw_only=True)
class RequestSettings:
    """Most requests per second, the times for their reports, and the labels of their metrics."""

    per_second: int = 10_000
    window_s: float = 120.0
    lateness_s: float = 0.0
    labels: tuple[str, ...] = ()
    max_open: int = 500_000
    """Most requests of all runs whose energy is not final."""

    @classmethod
    def of(
        cls, per_second: int, window: str | None, lateness: str | None, labels: str | None
    ) -> RequestSettings:
        """Return the values of the options. Raises UsageError."""
        return cls(
            per_second=per_second,
            window_s=cls.window_s
            if window is None
            else parse_seconds(window, "--requests.window", "10s", "1h"),
            lateness_s=cls.lateness_s
            if lateness is None
            else parse_seconds(lateness, "--requests.lateness", "0s", "1h"),
            labels=_labels(labels),
        )


def _labels(text: str | None) -> tuple[str, ...]:
    """Return the names in --requests.labels. Raises UsageError."""
    names = (
        tuple(dict.fromkeys(name.strip() for name in text.split(","))) if text is not None else ()
    )
    for name in names:
        if (
            not re.fullmatch("[a-zA-Z_][a-zA-Z0-9_]{0,63}", name)
            or name.startswith("__")
            or name in RESERVED_LABELS
        ):
            raise UsageError(
                "--requests.labels: expected names such as user,route, other than "
                f"{', '.join(RESERVED_LABELS)}, "
                f"not {name!r}"
            )
    if len(names) > MAX_LABELS:
        raise UsageError(f"--requests.labels: more than {MAX_LABELS} names; remove some")
    return names
