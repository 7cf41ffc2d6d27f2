"""Entry point: `python -I -S <folder of this file> <attempt folder> [notify fd]`, or `... --forkserver FD`."""

from __future__ import annotations

import sys
from pathlib import Path

if not __package__:
    # Run as a folder: put the package's parent where this folder was, behind the standard library.
    del sys.path[0]
    sys.path.append(str(Path(__file__).resolve().parent.parent.parent))

if sys.argv[1:2] == ["--forkserver"]:
    from cotenant.runner.forkserver import serve

    sys.exit(serve(int(sys.argv[2])))

from cotenant.runner.attempt import main

sys.exit(main(sys.argv[1:]))
