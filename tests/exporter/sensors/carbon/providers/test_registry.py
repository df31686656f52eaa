"""Registry of carbon providers: their names, files and interface."""

from __future__ import annotations

import subprocess
import sys

import pytest

from wattline_exporter.sensors.carbon.providers import load_provider, provider_names


def test_providers_are_listed_by_the_names_of_their_files():
    assert provider_names() == ("electricitymaps", "energy-charts", "gb", "static", "watttime")


@pytest.mark.parametrize("name", provider_names())
def test_provider_has_the_name_of_its_file(name):
    assert load_provider(name).name == name


def test_options_import_no_provider():
    code = (
        "import sys, wattline_exporter.cli.main, wattline_analyzer.report.options; "
        "print([name for name in sys.modules if name.startswith("
        "'wattline_exporter.sensors.carbon.providers.')], 'pydantic' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[] False\n"
