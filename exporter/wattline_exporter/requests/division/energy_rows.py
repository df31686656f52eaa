"""Energies of final requests as rows in single precision, and as packed columns."""

from __future__ import annotations

import struct
import zlib

import numpy as np

from wattline_exporter.requests.division.arrays import FloatArray
from wattline_exporter.requests.division.half_widths import (
    ERRORS,
    FLOOR_RATIO,
    ROLE_RATIO,
    Energies,
    half_widths_j,
)

_ERROR_FIELDS = tuple(f"error_{number}_j" for number in range(1, ERRORS + 1))
_SUM_FIELDS = (
    "prefill_j",
    "decode_j",
    "idle_j",
    "scatter_j2",
    "meter_j2",
    "guessed_j",
    "beside_guesses_j",
    "limit_j",
    "most_j",
)
"""Columns of `Energies` that are stored as they are."""
_COLUMNS = (*_SUM_FIELDS, *_ERROR_FIELDS, "missing_s", "mean_s")
ENERGY_FIELDS = [
    *((name, "f4") for name in _COLUMNS),
    ("is_separable", "?"),
    ("is_shared", "?"),
    ("is_idle_known", "?"),
    ("is_of_role", "?"),
    ("loss", "u1"),
]
ENERGY_TYPE = np.dtype(ENERGY_FIELDS)
"""Final request with its energy in joules, in single precision before anything uses it.

`missing_s`: time before the first slot that it could be divided in. `mean_s`: time whose power is a
mean, since the meters were read late. `is_idle_known`: its idle power was measured. `is_separable`:
its energies of prefill and decode can be stated. `is_shared`: another run used its GPUs then.
`is_of_role`: its server works in one phase. `loss` is the reason why it has no energy, or 0.
"""
_HEAD = struct.Struct("<IH")
"""CRC-32 of all that follows, and a bit for each of _COLUMNS that is not 0 for all requests."""


def set_energies(rows: np.ndarray, energies: Energies) -> None:
    """Set the energies (N) of rows (N,) that have the fields of ENERGY_TYPE."""
    for name in _SUM_FIELDS:
        rows[name] = getattr(energies, name)
    for name, errors_j in zip(_ERROR_FIELDS, energies.errors_j, strict=True):
        rows[name] = errors_j
    rows["is_of_role"] = energies.floor_ratio == ROLE_RATIO


def energies_of(rows: np.ndarray) -> Energies:
    """Return the energies (N) of rows (N,) that have the fields of ENERGY_TYPE."""
    sums = {name: rows[name].astype(np.float64) for name in _SUM_FIELDS}
    errors_j = np.array([rows[name] for name in _ERROR_FIELDS], dtype=np.float64)
    return Energies(
        **sums,
        errors_j=errors_j,
        known_idle_j=np.where(rows["is_idle_known"], sums["idle_j"], 0.0),
        floor_ratio=ROLE_RATIO if rows["is_of_role"].any() else FLOOR_RATIO,
    )


def totals_j(rows: np.ndarray) -> FloatArray:
    """Return the energies of rows (N,) with their idle energies."""
    return energies_of(rows).total_j


def row_half_widths_j(rows: np.ndarray) -> FloatArray:
    """Return the half-widths of the energies of rows (N,), each one by the rule of its server."""
    of_role: np.ndarray = rows["is_of_role"]
    result = np.empty(len(rows))
    for chosen in (of_role, ~of_role):
        result[chosen] = half_widths_j(energies_of(rows[chosen]))
    return result


def pack_energies(rows: np.ndarray) -> bytes:
    """Return the body of a batch: `_HEAD`, columns in single precision, and a byte of flags a
    request.

    Columns that are 0 for all of its requests are left out.
    """
    columns = np.array([rows[name] for name in _COLUMNS], "<f4")
    is_used = columns.any(axis=1)
    bits = sum(1 << bit for bit in np.flatnonzero(is_used).tolist())
    flags = np.packbits(
        [
            rows["is_separable"],
            rows["is_shared"],
            rows["is_idle_known"],
            rows["is_of_role"],
            *(rows["loss"] >> bit & 1 for bit in range(4)),
        ],
        axis=0,
        bitorder="little",
    )
    content = bits.to_bytes(2, "little") + columns[is_used].tobytes() + flags.tobytes()
    return zlib.crc32(content).to_bytes(4, "little") + content


def unpack_energies(body: bytes) -> np.ndarray:
    """Return the rows of ENERGY_TYPE of a batch. Raises ValueError for a body that is damaged."""
    if len(body) < _HEAD.size or zlib.crc32(body[4:]) != _HEAD.unpack_from(body)[0]:
        raise ValueError("its checksum is wrong")
    _, bits = _HEAD.unpack_from(body)
    used = [name for bit, name in enumerate(_COLUMNS) if bits >> bit & 1]
    count = (len(body) - _HEAD.size) // (4 * len(used) + 1)
    rows = np.zeros(count, ENERGY_TYPE)
    columns = np.frombuffer(body, "<f4", len(used) * count, _HEAD.size)
    for name, column in zip(used, columns.reshape(len(used), count), strict=True):
        rows[name] = column
    flags = np.frombuffer(body, "u1", count, len(body) - count)
    for bit, name in enumerate(("is_separable", "is_shared", "is_idle_known", "is_of_role")):
        rows[name] = flags >> bit & 1
    rows["loss"] = flags >> 4
    return rows
