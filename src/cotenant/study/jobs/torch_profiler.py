"""A program of its own that runs a script under torch.profiler: `python torch_profiler.py TRACE.json SCRIPT [ARGS...]`.

The whole run is profiled, with shapes and memory, and exported as a Chrome trace, as the study of table 3.2 did.
"""

from __future__ import annotations

import pathlib
import runpy
import sys


def main() -> None:
    """Profile the script, then export."""
    from torch.profiler import profile

    trace, script = sys.argv[1], sys.argv[2]
    sys.argv = sys.argv[2:]
    sys.path[0] = str(pathlib.Path(script).resolve().parent)
    with profile(record_shapes=True, profile_memory=True) as found:
        runpy.run_path(script, run_name="__main__")
    found.export_chrome_trace(trace)


if __name__ == "__main__":
    main()
