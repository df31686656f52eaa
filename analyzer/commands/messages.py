"""Messages on stderr and files that a command writes."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import NoReturn


def print_message(text: str) -> None:
    print(f"analyzer: {text}", file=sys.stderr, flush=True)


def exit_with_error(text: str) -> NoReturn:
    print_message(text)
    raise SystemExit(1)


def write_files(folder: Path, contents: Mapping[str, bytes]) -> None:
    """Write files by their names, create missing folders, and print the paths."""
    try:
        for name, content in contents.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
    except OSError as error:
        exit_with_error(f"cannot write to {folder}: {error.strerror}; give --out a folder with write permission")
    print_message(f"wrote {', '.join(str(folder / name) for name in contents)}")
