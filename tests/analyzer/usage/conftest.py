"""`analyzer usage` on nodes of known energy."""

import json

import pytest

from tests.analyzer.small_fleet import BEGIN_S, END_S


@pytest.fixture(scope="module")
def sources(fleet_addresses, fleet_history):
    return {**fleet_addresses, "history": str(fleet_history)}


@pytest.fixture
def usage(call, sources):
    """Run the command; return its JSON document and stderr."""

    def run(source, by, *arguments, since=BEGIN_S, until=END_S):
        window = ("--since", since, "--until", until)
        named = sources.get(source, source)
        code, stdout, stderr = call(
            "usage", "--source", named, "--by", by, *window, *arguments, "--format", "json"
        )
        assert code == 0, stderr
        return json.loads(stdout)

    return run
