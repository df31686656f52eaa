"""Tools of `analyzer mcp`, called by the client of the official SDK over stdio."""

import asyncio
import json
import sys

import pytest
from mcp import Client, StdioServerParameters, stdio_client

from tests.analyzer.golden import documents
from tests.analyzer.golden.scene import BASE_S

ALL = "36500d"


@pytest.fixture(scope="module")
def history(tmp_path_factory):
    return documents.unpack(tmp_path_factory.mktemp("golden"))


def conversation(history, *calls):
    """Return the tools of a server, and the results of the calls: pairs of a tool and its
    arguments.
    """

    async def talk():
        server = StdioServerParameters(
            command=sys.executable,
            args=["-m", "wattline_analyzer", "mcp", "--source", str(history)],
        )
        async with Client(stdio_client(server)) as client:
            tools = (await client.list_tools()).tools
            return tools, await asyncio.gather(
                *(client.call_tool(name, values) for name, values in calls)
            )

    return asyncio.run(asyncio.wait_for(talk(), 120))


def test_tools_return_the_json_of_their_commands(analyzer, history):
    window = {"since": str(BASE_S - 30), "until": str(BASE_S + 3_000)}
    groups = ["power_limit_watts=400", "power_limit_watts=500"]
    calls = {
        ("runs", "--since", ALL): {"since": ALL},
        ("report", "--run-id", "mixed", "--since", ALL): {"run_id": "mixed", "since": ALL},
        ("compare", *groups, "--since", ALL): {"runs_or_groups": groups, "since": ALL},
        ("usage", "--by", "model", "--since", window["since"], "--until", window["until"]): {
            "by": "model",
            **window,
        },
        ("recommend", "--experiment", "caps", "--since", ALL): {"experiment": "caps", "since": ALL},
    }
    tools, results = conversation(history, *((words[0], values) for words, values in calls.items()))

    assert {tool.name for tool in tools} == {
        "runs",
        "report",
        "compare",
        "usage",
        "waste",
        "requests",
        "recommend",
    }
    assert all(tool.annotations.read_only_hint and tool.description for tool in tools)
    for words, result in zip(calls, results, strict=True):
        assert not result.is_error, result.content
        assert json.loads(result.content[0].text) == json.loads(
            analyzer(*words, "--source", history, "--format", "json").stdout
        ), words
    mixed = json.loads(results[1].content[0].text)
    assert mixed["run_id"] == "mixed"


def test_tool_error_is_the_message_of_the_command(analyzer, history, tmp_path):
    forged = f"x --out={tmp_path / 'out'}"
    bad = [
        ("report", {"run_id": "missing", "since": ALL}),
        ("waste", {"since": "soon"}),
        ("report", {"run_id": forged}),
    ]
    _, results = conversation(
        history, *bad, ("compare", {"runs_or_groups": [f"--out={tmp_path / 'out'}"]})
    )

    expected = analyzer("report", "--run-id", "missing", "--since", ALL, "--source", history)
    assert all(result.is_error for result in results)
    assert results[0].content[0].text == f"Error executing tool report: {expected.stderr.strip()}"
    assert "tool waste: analyzer: --since: " in results[1].content[0].text
    assert not (tmp_path / "out").exists()


def test_server_with_an_invalid_option_is_one_line_error(analyzer):
    served = analyzer("mcp", "--header", "no colon")

    assert (served.returncode, served.stdout) == (2, "")
    assert served.stderr == analyzer("runs", "--header", "no colon").stderr.replace(
        "analyzer runs", "analyzer mcp"
    )
