"""For all tests."""

import signal

from hypothesis import HealthCheck, settings

# on a busy machine making an example takes longer than running it: that is no fault of the test's
settings.register_profile("wattline", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("wattline")

# a shell's background job ignores these, and so would what the tests start
signal.signal(signal.SIGINT, signal.default_int_handler)
for ignored in (signal.SIGHUP, signal.SIGQUIT):
    signal.signal(ignored, signal.SIG_DFL)
