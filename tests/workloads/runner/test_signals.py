import signal

import pytest

from wattline_workloads.runner.signals import unwind_on_signal

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@pytest.mark.parametrize("error", [None, ValueError, SystemExit])
def test_unwind_on_signal_restores_handlers(error):
    before = [signal.getsignal(number) for number in _SIGNALS]
    try:
        with unwind_on_signal():
            assert [signal.getsignal(number) for number in _SIGNALS] != before
            if error is not None:
                raise error
    except (ValueError, SystemExit):
        pass

    assert [signal.getsignal(number) for number in _SIGNALS] == before


def test_unwind_on_signal_unwinds_and_ends_by_signal(exporter, write):
    script = write(
        "import os, signal\n"
        "from wattline_workloads.runner.signals import unwind_on_signal\n"
        "with unwind_on_signal():\n"
        "    try:\n"
        "        os.kill(os.getpid(), signal.SIGTERM)\n"
        "        print('went on')\n"
        "    finally:\n"
        "        os.kill(os.getpid(), signal.SIGINT)\n"
        "        print('unwound', flush=True)\n"
    )
    done = exporter.python(script)

    assert (done.returncode, done.stdout, done.stderr) == (-signal.SIGTERM, "unwound\n", "")
