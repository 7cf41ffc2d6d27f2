"""`python -m cotenant` is the command line."""

from __future__ import annotations

from cotenant.cli.main import run

if __name__ == "__main__":
    run()
