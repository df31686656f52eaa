"""`python -m wattline.integrations.serve PROGRAM …`: a Python server whose requests are measured.

The program starts unchanged in this process. Each application that it gives to uvicorn gets
`EnergyMiddleware`.
"""

from __future__ import annotations

import functools
import importlib.metadata
import importlib.util
import runpy
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from wattline.client.messages import log_message, message_line
from wattline.integrations.asgi import EnergyMiddleware

_USAGE = (
    "usage: python -m wattline.integrations.serve PROGRAM [ARGUMENTS…] or … serve -m MODULE "
    "[ARGUMENTS…]"
)


def main(arguments: list[str]) -> object:
    """Run the program; return its result. Raises SystemExit."""
    if arguments[:1] in (["--help"], ["-h"]):
        print(_USAGE)
        return None
    if not arguments or (arguments[0] == "-m" and len(arguments) < 2):
        sys.exit(_USAGE)
    try:
        import uvicorn
    except ImportError:
        cause = f"cannot measure {arguments[0]}: uvicorn is not installed here"
        sys.exit(message_line(f"{cause}; use the server's Python"))
    wrap_applications(uvicorn.Config)
    if arguments[0] == "-m":
        if not _is_module(arguments[1]):
            _fail(arguments[1], "module")
        sys.argv = list(arguments[1:])
        return runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
    entry = _console_script(arguments[0])
    sys.argv = list(arguments)
    if entry is None:
        if not Path(arguments[0]).exists():
            _fail(arguments[0], "program or file")
        return runpy.run_path(arguments[0], run_name="__main__")
    return sys.exit(entry())


def wrap_applications(config: Any) -> None:
    """Add the middleware to the application that `uvicorn.Config` loads."""
    load = config.load

    @functools.wraps(load)
    def load_wrapped(self: Any) -> None:
        load(self)
        self.loaded_app = EnergyMiddleware(self.loaded_app)

    config.load = load_wrapped


def _console_script(name: str) -> Callable[[], int | str | None] | None:
    """Return the function of an installed command, None if there is none of this name."""
    found = importlib.metadata.entry_points(group="console_scripts", name=name)
    function: Callable[[], int | str | None] | None = next((entry.load() for entry in found), None)
    return function


def _is_module(name: str) -> bool:
    """Return whether Python can run a module or package of this name."""
    try:
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.submodule_search_locations is not None:
            spec = importlib.util.find_spec(f"{name}.__main__")
    except ModuleNotFoundError as error:
        if not f"{name}.".startswith(f"{error.name}."):  # an import of the package above it
            raise
        return False
    return spec is not None


def _fail(name: str, kind: str) -> NoReturn:
    log_message(f"cannot start {name}: no such {kind}; check its name, PATH and the Python in use")
    sys.exit(2)


if __name__ == "__main__":
    main(sys.argv[1:])
