"""Start of the analyzer's command line."""

import subprocess
import sys


def test_importing_cli_loads_no_heavy_package():
    heavy = {"matplotlib", "numpy", "requests", "jinja2", "pydantic"}
    code = f"import sys, wattline_analyzer.cli; print(sorted({heavy} & set(sys.modules)))"
    assert (
        subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True
        ).stdout
        == "[]\n"
    )


def test_help_loads_no_heavy_package():
    heavy = {"matplotlib", "numpy", "requests", "jinja2", "pydantic"}
    loaded = f"atexit.register(lambda: print(sorted({heavy} & set(sys.modules))))"
    code = (
        f"import atexit, sys; {loaded}; sys.argv[1:] = ['--help']; from wattline_analyzer.cli "
        "import main; main()"
    )
    completed = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert completed.stdout.endswith("\n[]\n")
