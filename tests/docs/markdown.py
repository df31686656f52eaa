"""Fenced code blocks, links and headings of Markdown pages."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_FENCE = re.compile(r"^ {0,8}```(\w*)[^\n]*\n(.*?)^ {0,8}```\s*$", re.DOTALL | re.MULTILINE)
_LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")
_HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
_SEPARATORS = {";", "&&", "||", "|", "&", "(", ")", ";;"}
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=.*", re.DOTALL)
_WRAPPERS = {"sudo", "env", "exec", "time", "nohup"}


@dataclass(frozen=True, slots=True)
class Block:
    """Fenced code block; one without a language that starts with `$ ` is a console."""

    page: Path
    line: int
    language: str
    text: str


def blocks(page: Path) -> list[Block]:
    text = page.read_text()
    return [
        Block(
            page,
            text.count("\n", 0, result.start()) + 1,
            result[1] or _language(result[2]),
            result[2],
        )
        for result in _FENCE.finditer(text)
    ]


def _language(text: str) -> str:
    return "console" if text.lstrip().startswith("$ ") else "text"


def links(page: Path) -> list[str]:
    return _LINK.findall(_without_code(page.read_text()))


def anchors(page: Path) -> set[str]:
    """Return the anchors of all headings, as GitHub makes them."""
    return {_anchor(heading) for heading in _HEADING.findall(_FENCE.sub("", page.read_text()))}


def prose_words(page: Path) -> int:
    """Return the number of words, without the separators of tables and the text of code blocks."""
    return len(re.findall(r"\S*\w\S*", _FENCE.sub("", page.read_text())))


def command_lines(block: Block) -> Iterator[list[str]]:
    """Yield each command as words, without assignments, `sudo` and the `$` of a console.

    A console's output is left out, and a line that is not shell syntax ends the block with
    ValueError.
    """
    text = block.text.replace("\\\n", " ")
    for line in _joined(text.splitlines(), prompt="$ " if block.language == "console" else ""):
        yield from _commands(line)


def _joined(lines: list[str], prompt: str) -> Iterator[str]:
    """Yield the lines after the prompt, each with the rest of a quoted string that spans several
    lines.
    """
    pending = ""
    for line in lines:
        if not pending and not line.lstrip().startswith(prompt):
            continue
        pending = f"{pending}\n{line}" if pending else line.lstrip().removeprefix(prompt)
        try:
            shlex.split(pending, comments=True)
        except ValueError:
            continue
        yield pending
        pending = ""
    if pending:
        message = f"unbalanced quotes: {pending.strip()}"
        raise ValueError(message)


def _commands(line: str) -> Iterator[list[str]]:
    lexer = shlex.shlex(line, posix=True, punctuation_chars=";&|()")
    lexer.whitespace_split = True
    lexer.commenters = "#"
    words: list[str] = []
    for word in [*lexer, ";"]:
        if word in _SEPARATORS:
            if command := _without_prefix(words):
                yield command
            words = []
        else:
            words.append(word)


def _without_prefix(words: list[str]) -> list[str]:
    while words and (_ASSIGNMENT.fullmatch(words[0]) or words[0] in _WRAPPERS):
        words = words[1:]
        while words and words[0].startswith("-"):
            words = words[1:]
    return words


def _anchor(heading: str) -> str:
    plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "").strip().lower()
    return re.sub(r"[^\w\- ]", "", plain).replace(" ", "-")


def _without_code(text: str) -> str:
    return re.sub(r"`[^`\n]*`", "", _FENCE.sub("", text))
