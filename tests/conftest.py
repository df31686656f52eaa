"""For all tests."""

import signal

# a shell's background job ignores these, and so would what the tests start
signal.signal(signal.SIGINT, signal.default_int_handler)
for ignored in (signal.SIGHUP, signal.SIGQUIT):
    signal.signal(ignored, signal.SIG_DFL)
