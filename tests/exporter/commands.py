"""The exporter's command line as its user types it."""

from tests.daemon import environment
from tests.fork_server import ForkServer

SIMULATED = ("--simulate", "2xH200", "--no-collector.rapl", "--no-collector.host")
NURSERY = ForkServer("exporter.cli.main", "exporter.cli.daemon", "exporter.cli.check", "exporter.cli.sources")


def exporter(*arguments, **env):
    return NURSERY.run(["-m", "exporter", *arguments], environment(env), timeout_s=60)


def one_line(done, code, *words):
    """It says one line on stderr with these words, and ends with this code."""
    assert (done.returncode, done.stdout) == (code, ""), done
    (line,) = done.stderr.splitlines()
    for word in words:
        assert word in line
