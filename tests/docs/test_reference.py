"""Generated reference tables."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.docs import exit_codes, finding_codes, option_tables, reference

_START = """
import sys
from importlib.metadata import entry_points

entry_points(group="console_scripts")[sys.argv.pop(1)].load()()
"""


@pytest.mark.parametrize(
    "path",
    reference.pages_with_tables(),
    ids=lambda path: path.relative_to(reference.ROOT).as_posix(),
)
def test_reference_page_is_up_to_date(path):
    assert path.read_text() == reference.pages()[path], "stale; run: make docs"


def test_every_generated_block_is_on_a_page():
    text = "".join(path.read_text() for path in reference.markdown_files())

    assert [name for name in reference.BLOCKS if f"<!-- generated: {name} -->" not in text] == []


def test_every_finding_code_has_a_meaning():
    assert sorted(finding_codes.MEANINGS) == sorted(finding_codes.collect_findings())


def test_finding_codes_of_known_findings_have_their_levels():
    result = finding_codes.collect_findings()

    assert (result["stuck_sensor"], result["gap"], result["rapl_wrap"]) == (
        {"bad"},
        {"warning"},
        {"note", "warning"},
    )


def test_hidden_options_are_left_out():
    check = next(
        command for command in option_tables.commands("exporter") if command.name == "check"
    )

    assert "--log.level" in option_tables.option_names("exporter")["check"]
    assert not [one for one in check.parameters if one.names.startswith("--log.level")]


def test_options_have_help_and_default():
    serve = next(
        command for command in option_tables.commands("exporter") if command.name == "serve"
    )
    address = next(one for one in serve.parameters if one.names.startswith("--web.listen-address"))

    assert address.help
    assert address.default == "`127.0.0.1:9847`"


@pytest.mark.parametrize(
    ("program", "arguments", "code"),
    [
        ("exporter", ["--version"], 0),
        (
            "exporter",
            ["check", "--no-collector.nvml", "--no-collector.rapl", "--no-collector.hwmon"],
            1,
        ),
        ("exporter", ["serve", "--unknown"], 2),
        ("workloads", ["list"], 0),
        ("workloads", ["job", "unknown"], 2),
        ("analyzer", ["--version"], 0),
        ("analyzer", ["runs", "--source", "/nonexistent.sqlite"], 1),
        ("analyzer", ["report", "--unknown"], 2),
    ],
    ids=lambda value: str(value) if isinstance(value, int) else None,
)
def test_exit_code_is_the_documented_one(program, arguments, code):
    run = [sys.executable, "-P", "-c", _START, program, *arguments]
    ended = subprocess.run(
        run, cwd=reference.ROOT, capture_output=True, text=True, check=False, timeout=60
    )

    assert ended.returncode == code, ended.stderr
    assert code in exit_codes.EXIT_CODES[program]
