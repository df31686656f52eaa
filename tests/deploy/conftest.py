from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.deploy.machine import SYSTEMD, Machine


@pytest.fixture(scope="package")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    if os.geteuid() != 0 or not SYSTEMD.exists():
        pytest.skip("to boot a systemd takes root and Debian's package systemd")
    with Machine(tmp_path_factory.mktemp("machine")) as booted:
        booted.install_checkout()
        yield booted
