"""Mean and percentiles of latencies as results of a run."""

from __future__ import annotations

from collections.abc import Sequence

PERCENTILES = (50, 90, 95, 99)


def percentile_results(name: str, values: Sequence[float]) -> dict[str, float]:
    """Return `{name}_mean`, `{name}_p50` … `_p99`, linearly interpolated (NumPy's default); empty without values."""
    if not values:
        return {}
    import numpy as np

    points = np.percentile(values, PERCENTILES)
    named = {f"{name}_p{percentile}": float(value) for percentile, value in zip(PERCENTILES, points, strict=True)}
    return {f"{name}_mean": float(np.mean(values)), **named}
