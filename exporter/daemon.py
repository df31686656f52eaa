"""Start and stop of the daemon's services. A bug in any of them ends the process."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from exporter.model import Service


class Daemon:
    """Services in the order of their start. They stop in the opposite order, once `stopping` is set."""

    def __init__(self, services: Sequence[Service], stopping: asyncio.Event) -> None:
        self._services = services
        self._stopping = stopping

    async def run(self) -> None:
        """Start all services, run them until `stopping` is set, and stop them."""
        try:
            for service in self._services:
                await service.start()
            await self._run_services()
        finally:
            for service in reversed(self._services):
                await service.stop()

    async def _run_services(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            running = [tasks.create_task(service.run()) for service in self._services]
            await self._stopping.wait()
            for task in running:
                task.cancel()
