"""Fleet and usage from the address of a real exporter, which answers no query of a server."""

import json

import pytest

from tests import daemon
from tests.polling import eventually


@pytest.fixture(scope="module")
def exporter(tmp_path_factory):
    with daemon.daemon(tmp_path_factory.mktemp("exporter"), "--simulate", "1xH200") as started:
        daemon.begin(
            started, labels={"user": "ada"}
        )  # while a run is open, the history has a sample a second
        yield started


@pytest.mark.parametrize("command", ["usage"])
def test_fleet_commands_read_an_exporter(call, exporter, command):
    failures = []

    def documents():
        code, stdout, stderr = call(
            command, "--since", "10m", "--source", exporter.url, "--format", "json"
        )
        failures.append(stderr)
        return [json.loads(stdout)] if code == 0 else []

    (document,) = eventually(documents, command, lambda: failures[-1])

    assert document["by"] == ["model", "user"]
