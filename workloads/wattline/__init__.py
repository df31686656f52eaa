"""Energy of a Python program: `with wattline.run("train") as run: …`; in a notebook `%load_ext
wattline`.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from wattline.client.summary import EnergySoFar, RunResult
    from wattline.runs.run import ActiveRun
    from wattline.runs.start import measure, run, start

__all__ = ["ActiveRun", "EnergySoFar", "RunResult", "measure", "run", "start"]

_MODULES = {
    "ActiveRun": "wattline.runs.run",
    "EnergySoFar": "wattline.client.summary",
    "RunResult": "wattline.client.summary",
    "measure": "wattline.runs.start",
    "run": "wattline.runs.start",
    "start": "wattline.runs.start",
}


def __getattr__(name: str) -> Any:
    """Load a public name at its first use: the programs import the contract without the client."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_MODULES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """Return the public names, also those that are not loaded yet."""
    return [*__all__, "load_ipython_extension"]


def load_ipython_extension(shell: Any) -> None:
    """Register the cell magic `%%wattline`; IPython calls it for `%load_ext wattline`."""
    from functools import partial

    from wattline.integrations.jupyter import energy_magic

    shell.register_magic_function(partial(energy_magic, shell), "cell", "wattline")
