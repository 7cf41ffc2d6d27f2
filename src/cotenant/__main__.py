"""`cotenant` and `python -m cotenant`.

A module of its own: importing the command line takes 0.2 s, and Ctrl-C in that time must print no traceback.
"""

from __future__ import annotations

import signal


def run() -> None:
    """Run the command line; Ctrl-C while it is imported ends the process as the signal does by default."""
    is_default = signal.getsignal(signal.SIGINT) is signal.default_int_handler  # a background job ignores it
    if is_default:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from cotenant.cli.main import run as run_command_line

    if is_default:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    run_command_line()


if __name__ == "__main__":
    run()
