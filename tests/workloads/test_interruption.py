import signal

import pytest

from workloads.runner.signals import unwound_when_signalled

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@pytest.mark.parametrize("error", [None, ValueError, SystemExit])
def test_signals_do_afterwards_what_they_did_before(error):
    before = [signal.getsignal(number) for number in _SIGNALS]
    try:
        with unwound_when_signalled():
            assert [signal.getsignal(number) for number in _SIGNALS] != before
            if error is not None:
                raise error
    except (ValueError, SystemExit):
        pass

    assert [signal.getsignal(number) for number in _SIGNALS] == before


def test_within_a_signal_leaves_every_with_and_then_ends_the_process_by_itself(exporter, write):
    script = write(
        "import os, signal\n"
        "from workloads.runner.signals import unwound_when_signalled\n"
        "with unwound_when_signalled():\n"
        "    try:\n"
        "        os.kill(os.getpid(), signal.SIGTERM)\n"
        "        print('went on')\n"
        "    finally:\n"
        "        os.kill(os.getpid(), signal.SIGINT)\n"
        "        print('unwound', flush=True)\n"
    )
    done = exporter.python(script)

    assert (done.returncode, done.stdout, done.stderr) == (-signal.SIGTERM, "unwound\n", "")
