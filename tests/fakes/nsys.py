"""Fake of nsys that records its arguments, runs the command, and writes a report and tables.

FAKE_NSYS_FAULT: `profile` (no report), `stats` (failure), `no tables`.
"""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from pathlib import Path

_FAULT = os.environ.get("FAKE_NSYS_FAULT", "")


def install_nsys(folder: Path) -> Path:
    """Return a folder for PATH with the fake as nsys; it writes its arguments to `nsys.jsonl`
    there.
    """
    program = folder / "nsys"
    program.write_text(
        f'#!/bin/sh\nexec "{sys.executable}" -P "{__file__}" "{folder}/nsys.jsonl" "$@"\n'
    )
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    return folder


def _profile(arguments: list[str]) -> int:
    options = [argument for argument in arguments if argument.startswith("--")]
    first = next(i for i, argument in enumerate(arguments) if not argument.startswith("--"))
    output = next(option.partition("=")[2] for option in options if option.startswith("--output="))
    code = subprocess.run(arguments[first:], check=False).returncode
    if _FAULT != "profile":
        Path(f"{output}.nsys-rep").write_text("report\n")
    return code


def _stats(arguments: list[str]) -> int:
    if _FAULT == "stats":
        print("ERROR: the report is of a newer version", file=sys.stderr)
        return 1
    if _FAULT == "no tables":
        return 0
    output = arguments[arguments.index("--output") + 1]
    for name in ("cuda_api_sum", "cuda_gpu_kern_sum"):
        Path(f"{output}_{name}.json").write_text(json.dumps([{"Name": name}]))
    return 0


def main() -> int:
    log, verb, *arguments = sys.argv[1:]
    with Path(log).open("a") as file:
        file.write(json.dumps([verb, *arguments]) + "\n")
    return _profile(arguments) if verb == "profile" else _stats(arguments)


if __name__ == "__main__":
    sys.exit(main())
