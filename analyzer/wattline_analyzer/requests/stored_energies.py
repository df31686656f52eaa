"""Final energies of the requests that an exporter has, in a temporary file."""

from __future__ import annotations

import tempfile
import weakref
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from wattline_exporter.requests.division.energy_rows import ENERGY_TYPE

NOT_FINAL = 255
"""Loss of a request whose energy is not final."""
_CHUNK = 200_000


class EnergyFile:
    """Rows of ENERGY_TYPE in the order of the exporter: those of two days need 600 MB."""

    def __init__(self) -> None:
        self._file = tempfile.TemporaryFile()  # noqa: SIM115  # closed below
        weakref.finalize(self, self._file.close)

    def extend(self, rows: np.ndarray) -> None:
        """Add rows of ENERGY_TYPE."""
        self._file.write(rows.tobytes())

    def in_order(self, order: npt.NDArray[np.int32]) -> StoredEnergies:
        """Return the energies in another order; there are no more rows."""
        self._file.flush()
        return StoredEnergies(np.memmap(self._file, dtype=ENERGY_TYPE, mode="r"), order)


class StoredEnergies:
    """Energies of N requests, at `positions` (N,) of rows of ENERGY_TYPE."""

    def __init__(self, rows: np.ndarray, positions: npt.NDArray[np.int32]) -> None:
        self._rows = rows
        self._positions = positions

    def take(self, chosen: npt.NDArray[np.intp]) -> StoredEnergies:
        """Return some of the energies, which stay in the file."""
        return StoredEnergies(self._rows, self._positions[chosen])

    def __len__(self) -> int:
        return len(self._positions)

    def chunks(self) -> Iterator[tuple[slice, np.ndarray]]:
        """Yield consecutive requests with their rows of ENERGY_TYPE."""
        for start in range(0, len(self), _CHUNK):
            part = slice(start, start + _CHUNK)
            yield part, np.asarray(self._rows[self._positions[part]])

    @property
    def losses(self) -> npt.NDArray[np.uint8]:
        """Reasons why the requests have no energy, 0 for those with one, (N,)."""
        found = np.zeros(len(self), dtype=np.uint8)
        for part, rows in self.chunks():
            found[part] = rows["loss"]
        return found


def not_final(count: int) -> np.ndarray:
    """Return rows of ENERGY_TYPE of requests whose energy is not final."""
    rows = np.zeros(count, ENERGY_TYPE)
    rows["loss"] = NOT_FINAL
    return rows
