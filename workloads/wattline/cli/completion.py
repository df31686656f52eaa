"""Completion scripts of shells, generated from the commands' definitions."""

from __future__ import annotations

from collections.abc import Iterable

from wattline.cli.definitions import CommandDefinition, read_definitions
from wattline.commands import all_commands

SHELLS = ("bash", "zsh", "fish")
_ZSH = "autoload -U +X compinit && compinit\nautoload -U +X bashcompinit && bashcompinit\n"


def script(shell: str) -> str:
    """Return the script, which starts no Python when the shell completes."""
    known = read_definitions()
    if shell == "fish":
        return "\n".join(_fish(known)) + "\n"
    load = (
        "autoload -U +X compinit && compinit\nautoload -U +X bashcompinit && bashcompinit\n"
        if shell == "zsh"
        else ""
    )
    return load + "\n".join(_bash(known)) + "\n"


def _bash(known: Iterable[CommandDefinition]) -> Iterable[str]:
    words: dict[str, list[str]] = {}
    choices: dict[str, list[str]] = {}
    for command in known:
        name, _, inner = command.name.partition(" ")
        options = [long for option in command.options for long in option.names]
        words.setdefault(name, []).extend(filter(None, [inner, *options, "--help"]))
        for option in command.options:
            choices |= {
                f"{name},{one}": list(option.choices) for one in option.names if option.choices
            }
    words |= {"completion": list(SHELLS), "man": []}
    yield "_wattline() {"
    yield '    local word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD-1]} words=""'
    names = " ".join(all_commands())
    yield f'    if [ "$COMP_CWORD" -eq 1 ]; then words="{names} --help --version"; else'
    yield '    case "${COMP_WORDS[1]},$before" in'
    yield from (f'        {key}) words="{" ".join(values)}" ;;' for key, values in choices.items())
    yield '        *) case "${COMP_WORDS[1]}" in'
    for name, options in words.items():
        yield f'            {name}) words="{" ".join(dict.fromkeys(options))}" ;;'
    yield "        esac ;;"
    yield "    esac; fi"
    yield '    COMPREPLY=($(compgen -W "$words" -- "$word"))'
    yield "}"
    yield "complete -o default -F _wattline wattline"


def _fish(known: Iterable[CommandDefinition]) -> Iterable[str]:
    yield (
        "complete -c wattline -f -n __fish_use_subcommand -l help -d 'Show this message and exit.'"
    )
    for listed in all_commands().values():
        yield (
            f"complete -c wattline -f -n __fish_use_subcommand -a {listed.name} -d "
            f"{_quoted(listed.help)}"
        )
    for command in known:
        name, _, inner = command.name.partition(" ")
        condition = f"'__fish_seen_subcommand_from {name}'"
        if inner:
            yield f"complete -c wattline -n {condition} -a {inner} -d {_quoted(command.text)}"
        for option in command.options:
            values = (
                f" -x -a {_quoted(' '.join(option.choices))}"
                if option.choices
                else " -r"
                if option.value
                else ""
            )
            names = [
                f"-l {one[2:]}" if one.startswith("--") else f"-s {one[1:]}" for one in option.names
            ]
            if names:
                yield (
                    f"complete -c wattline -n {condition} {' '.join(names)}{values} -d "
                    f"{_quoted(option.help)}"
                )


def _quoted(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
