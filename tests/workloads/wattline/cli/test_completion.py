"""Completion of a shell, in bash."""

import subprocess

import pytest

from wattline.cli import completion
from wattline.commands import all_commands


@pytest.fixture(scope="module")
def bash_script():
    return completion.script("bash")


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["repo"], "report"),
        (["report", "--run"], "--run-id"),
        (["report", "--format", "y"], "yaml"),
        (["caps", "rest"], "restore"),
        (["completion", "z"], "zsh"),
    ],
)
def test_bash_completes_commands_options_and_values(bash_script, words, expected):
    line = " ".join(["wattline", *words])
    code = (
        f"{bash_script}\nCOMP_WORDS=({line}); COMP_CWORD={len(words)}; _wattline; echo "
        f'"${{COMPREPLY[@]}}"'
    )
    done = subprocess.run(
        ["bash", "-c", code], capture_output=True, text=True, check=True, timeout=60
    )

    assert (done.stdout, done.stderr) == (f"{expected}\n", "")


def test_zsh_script_loads_the_functions_of_bash(bash_script):
    assert completion.script("zsh").endswith(bash_script)
    assert "bashcompinit" in completion.script("zsh").splitlines()[1]


def test_fish_script_has_each_command():
    lines = completion.script("fish").splitlines()

    for name in all_commands():
        assert any(f"-a {name} " in line for line in lines), name
    assert any(
        "'__fish_seen_subcommand_from report' -l format -x -a 'table json yaml csv'" in line
        for line in lines
    )
