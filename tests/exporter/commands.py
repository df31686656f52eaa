"""Calls of the exporter's command line."""

from tests.daemon import environment
from tests.fork_server import ForkServer

SIMULATED = ("--simulate", "2xH200", "--no-collector.rapl", "--no-collector.host")
NURSERY = ForkServer(
    "wattline_exporter.cli.main",
    "wattline_exporter.cli.daemon",
    "wattline_exporter.cli.check",
    "wattline_exporter.sensors.carbon.choice",
)


def exporter(*arguments, **env):
    return NURSERY.run(["-m", "wattline_exporter", *arguments], environment(env), timeout_s=60)


def assert_one_line(result, code, *words):
    """Assert one line on stderr with these words, nothing on stdout, and this exit code."""
    assert (result.returncode, result.stdout) == (code, ""), result
    (line,) = result.stderr.splitlines()
    for word in words:
        assert word in line
