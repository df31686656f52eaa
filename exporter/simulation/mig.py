"""MIG: a simulated GPU cut into instances."""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import replace

from exporter.simulation.card import Gpu, Instance

_SLICES = 7


def with_mig(gpu: Gpu, profiles: Sequence[str] | None) -> Gpu:
    """One instance for each profile, like `3g.71gb`, with the same UUID each time; None switches MIG off.

    Raises ValueError for a GPU without MIG, a profile that is none, or more than seven slices.
    """
    if not gpu.product.is_of_data_centre:
        raise ValueError(f"GPU {gpu.index}: a {gpu.product.name} has no MIG")
    instances = None if profiles is None else tuple(_instances(gpu, profiles))
    if instances and sum(instance.slices for instance in instances) > _SLICES:
        raise ValueError(f"GPU {gpu.index}: {', '.join(profiles or ())} is more than {_SLICES} slices")
    return replace(gpu, instances=instances)


def _instances(gpu: Gpu, profiles: Sequence[str]) -> Iterator[Instance]:
    for number, profile in enumerate(profiles, start=1):
        found = re.fullmatch(r"([1-7])g\.(\d{1,3})gb", profile)
        if not found:
            raise ValueError(f"a MIG profile is like 3g.71gb, not {profile!r}")
        name = uuid.uuid5(uuid.NAMESPACE_DNS, f"{gpu.uuid}/{number}/{profile}")
        yield Instance(number, f"MIG-{name}", profile, slices=int(found[1]), memory_bytes=int(found[2]) << 30)
