"""Commands, configuration and links shown in the documents.

Every Markdown page of the repository is checked. Commands of the three programs must parse; those
that need no GPU, no service and no user's data also run, on simulated GPUs and loopback.
"""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path, PurePath

import pytest
import yaml

from tests.docs import markdown, option_tables
from tests.docs.reference import ROOT, markdown_files
from wattline_workloads.jobs.base import job_names

PAGES = markdown_files()
BLOCKS = [block for page in PAGES for block in markdown.blocks(page)]
MAX_WORDS = 1500
EVIDENCE = ROOT / "tests" / "laboratory" / "EVIDENCE.md"
"""Page with the results of all studies, which may be longer."""
SHELL = ("sh", "bash", "shell", "console")
JOB_COMMANDS = {"job", "sweep"}


def block_id(value):
    if isinstance(value, markdown.Block):
        return f"{value.page.relative_to(ROOT)}:{value.line}"
    return value.relative_to(ROOT).as_posix() if isinstance(value, Path) else None


def options_of(words):
    """Return the options a command takes, and its words after the command's name."""
    program, rest = PurePath(words[0]).name, words[1:]
    known = option_tables.option_names(program)
    path: list[str] = []
    consumed = 0
    while consumed < len(rest) and " ".join([*path, rest[consumed]]) in known:
        path.append(rest[consumed])
        consumed += 1
    return known, " ".join(path), rest[consumed:]


def unknown_options(words):
    known, command, rest = options_of(words)
    if (words[0] == "workloads" and command == "run") or "--" in rest:
        rest = rest[: rest.index("--")] if "--" in rest else []
    allowed = set(known[command])
    if command in JOB_COMMANDS:
        allowed |= {option for job in rest if job in job_names() for option in job_options(job)}
    arguments = [word.partition("=")[0] for word in rest if re.match(r"--?[a-z]", word)]
    return [option for option in arguments if option not in allowed]


def job_options(job):
    return option_tables.job_option_names(job)


def programs_commands(block):
    for words in markdown.command_lines(block):
        if PurePath(words[0]).name in option_tables.PROGRAMS and not any(
            "…" in word for word in words
        ):
            yield [PurePath(words[0]).name, *words[1:]]


@pytest.mark.parametrize("block", [b for b in BLOCKS if b.language in SHELL], ids=block_id)
def test_shown_command_has_known_options(block):
    for words in programs_commands(block):
        known, command, _ = options_of(words)
        assert command in known
        assert command or len(words) == 1 or words[1].startswith("-"), (
            f"unknown command: {shlex.join(words)}"
        )
        assert unknown_options(words) == [], shlex.join(words)


@pytest.mark.parametrize(
    "block", [b for b in BLOCKS if b.language in SHELL and b.language != "console"], ids=block_id
)
def test_shown_shell_block_is_valid_syntax(block):
    checked = subprocess.run(
        ["bash", "-n"], input=block.text, text=True, capture_output=True, check=False
    )

    assert checked.returncode == 0, checked.stderr


@pytest.mark.parametrize(
    "block", [b for b in BLOCKS if b.language in ("yaml", "yml", "json")], ids=block_id
)
def test_shown_configuration_parses(block):
    parse = json.loads if block.language == "json" else lambda text: list(yaml.safe_load_all(text))

    assert parse(block.text)


@pytest.mark.parametrize("block", [b for b in BLOCKS if b.language == "python"], ids=block_id)
def test_shown_python_compiles(block):
    compile(block.text, block_id(block), "exec")


@pytest.mark.parametrize("page", PAGES, ids=block_id)
def test_linked_files_and_headings_exist(page):
    for link in markdown.links(page):
        path, _, anchor = link.partition("#")
        if re.match(r"[a-z]+:", link):
            continue
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), link
        assert not anchor or target.suffix != ".md" or anchor in markdown.anchors(target), link


@pytest.mark.parametrize("page", [page for page in PAGES if page != EVIDENCE], ids=block_id)
def test_page_has_at_most_1500_words(page):
    assert markdown.prose_words(page) <= MAX_WORDS


SHELL_BLOCKS = [block for block in BLOCKS if block.language in SHELL]
MAKE_TARGETS = {
    target for b in SHELL_BLOCKS for target in re.findall(r"^make ([a-z]+)", b.text, re.MULTILINE)
}
RUNNABLE = {
    "exporter check": [
        *("--simulate", "2xH200", "--state.path", "state", "--idle-seconds", "0"),
        *("--web.listen-address", "127.0.0.1:0"),
    ],
    "exporter regions --carbon.provider gb": [],
    "workloads list": [],
    "workloads plan workloads/docs/examples/gpt2-caps.yaml --dry-run": [],
}
"""Shown commands that run here, with the options that the test adds."""


@pytest.mark.parametrize("target", sorted(MAKE_TARGETS))
def test_shown_make_target_exists(target):
    assert f"\n{target}:" in (ROOT / "Makefile").read_text()


@pytest.mark.parametrize("line", RUNNABLE)
def test_shown_command_runs(line, tmp_path):
    assert line in {
        shlex.join(words) for block in SHELL_BLOCKS for words in programs_commands(block)
    }
    program, *arguments = [
        word.replace("workloads/docs/examples", f"{ROOT}/workloads/docs/examples")
        for word in shlex.split(line)
    ]
    script = Path(sys.executable).with_name(program)
    command = [str(script), *arguments, *RUNNABLE[line]]
    ran = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=120
    )

    assert ran.returncode == 0, ran.stderr
    assert ran.stdout
