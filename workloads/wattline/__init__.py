"""Energy of a Python program: `with wattline.run("train") as run: …`; in a notebook `%load_ext
wattline`.
"""

from typing import Any

from wattline.client.summary import EnergySoFar, RunResult
from wattline.runs.run import Run
from wattline.runs.start import measure, run, start

__all__ = ["EnergySoFar", "Run", "RunResult", "measure", "run", "start"]


def load_ipython_extension(shell: Any) -> None:
    """Register the cell magic `%%wattline`; IPython calls it for `%load_ext wattline`."""
    from functools import partial

    from wattline.integrations.jupyter import energy_magic

    shell.register_magic_function(partial(energy_magic, shell), "cell", "wattline")
