"""Runs whose changes are to be saved, or are being saved."""

from __future__ import annotations

from collections.abc import Iterable


class UnsavedRuns:
    """Ids of runs that changed since the last save, and of those whose save is under way."""

    def __init__(self) -> None:
        self._changed: set[str] = set()
        self._saving: set[str] = set()

    def __contains__(self, run_id: str) -> bool:
        return run_id in self._changed or run_id in self._saving

    def add(self, run_id: str) -> None:
        self._changed.add(run_id)

    def take(self) -> set[str]:
        """Return the runs to save now; the caller then calls `confirm` or `put_back`."""
        taken, self._changed = self._changed, set()
        self._saving |= taken
        return taken

    def confirm(self, run_ids: Iterable[str]) -> None:
        self._saving -= set(run_ids)

    def put_back(self, run_ids: Iterable[str]) -> None:
        """Return runs that could not be saved to the next `take`."""
        failed = set(run_ids)
        self._saving -= failed
        self._changed |= failed
