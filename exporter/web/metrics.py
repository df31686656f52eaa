"""The metrics page, saved before it is shown."""

from __future__ import annotations

import asyncio
from typing import Any

from exporter.exposition.render import MetricsPage, MetricsRenderer
from exporter.storage.writer import StateWriter

SAVE_WITHIN_S = 0.25
"""Longest wait of a scrape for the disk."""


class MetricsEndpoint:
    """Pages of metrics. Their counters are saved first, since else they could fall after a SIGKILL."""

    def __init__(self, renderer: MetricsRenderer, storage: StateWriter, stopping: asyncio.Event) -> None:
        self._renderer = renderer
        self._storage = storage
        self._stopping = stopping
        self._save: asyncio.Task[Any] | None = None

    async def page(self, accept: str, *, compress: bool) -> MetricsPage:
        rendered_s = self._renderer.rendered_s
        page = self._renderer.page(accept, compress=compress)
        if self._renderer.rendered_s != rendered_s and not self._stopping.is_set():
            self._save = self._storage.next_save()
        if self._save and not self._save.done():
            await asyncio.wait({self._save}, timeout=SAVE_WITHIN_S)
        return page
