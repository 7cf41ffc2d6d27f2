"""Entry point: `python -I -S <folder of this file> <attempt folder> [notify fd]`, or `... --forkserver FD`.

`... --oom-evidence` reads {"outputs": [text, ...], "failed": bool} as JSON from stdin, and prints what is found there.
"""

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

if sys.argv[1:2] == ["--oom-evidence"]:
    import json

    from cotenant.runner.oom_evidence import evidence

    question = json.load(sys.stdin)
    print(json.dumps(evidence(question["outputs"], failed=question["failed"])))
    sys.exit(0)

from cotenant.runner.attempt import main

sys.exit(main(sys.argv[1:]))
