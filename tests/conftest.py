"""What all tests rely on."""

from __future__ import annotations

import signal

# Background jobs of a shell ignore Ctrl-C, and so does every program they start; some tests press it.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
