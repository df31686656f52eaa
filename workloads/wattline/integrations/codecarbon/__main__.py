"""Run a script that imports `codecarbon`, with the trackers of Wattline in its place.

python -m wattline.integrations.codecarbon script.py [ARGUMENT]...
"""

from __future__ import annotations

import runpy
import sys
from types import ModuleType

from wattline.integrations import codecarbon
from wattline.integrations.codecarbon import emissions_data, tracker

_USAGE = "usage: python -m wattline.integrations.codecarbon script.py [ARGUMENT]..."


def main() -> None:
    """Run the script of the command line."""
    arguments = sys.argv[1:]
    if arguments[:1] in (["--help"], ["-h"]):
        print(_USAGE)
        return
    if not arguments:
        sys.exit(_USAGE)
    outputs = ModuleType("codecarbon.output")
    outputs.__dict__.update(EmissionsData=emissions_data.EmissionsData)
    replaced = {
        "codecarbon": codecarbon,
        "codecarbon.emissions_tracker": tracker,
        "codecarbon.output": outputs,
        "codecarbon.output_methods.emissions_data": emissions_data,
    }
    sys.modules.update(replaced)
    sys.argv = arguments
    runpy.run_path(arguments[0], run_name="__main__")


if __name__ == "__main__":
    main()
