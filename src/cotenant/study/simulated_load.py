"""The kernel of `cotenant study metrics` on a simulated GPU; options as those of `jobs/kernel_load.py`.

It reports an activity that follows from the launch alone: blocks over SMs, threads over 2,048 per SM. This exercises
the study where there is no GPU; it is no statement about any.

A program of its own, run in place of `kernel_load.py`.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path

from cotenant.gpu_specs import gpu_specs_by_name
from cotenant.simserver.server import SimulatedServer

THREADS_PER_SM = 2048
"""Of compute capability 8.0 and 9.0 (CUDA C++ Programming Guide, technical specifications)."""
CONTEXT_BYTES = 450 * 2**20


def main() -> None:
    """Report the activity for some seconds."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kernel", default="square")
    parser.add_argument("--blocks", type=int, default=1)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--duty", type=float, default=1.0)
    parser.add_argument("--seconds", type=float, default=5.0)
    options = parser.parse_args()
    server = SimulatedServer.open(Path(os.environ["COTENANT_SIM_SERVER"]))
    sm_count = gpu_specs_by_name()[server.gpu(0).model].sm_count
    attachment = server.attach(server.uuids[0], context_bytes=CONTEXT_BYTES, label="kernel")
    smact = options.duty * min(1.0, options.blocks / sm_count)
    smocc = options.duty * min(1.0, options.blocks * options.threads / (sm_count * THREADS_PER_SM))
    began_s = time.time()
    drama = smocc if options.kernel == "stream" else 0.0
    attachment.set_activity(smact=smact, smocc=smocc, drama=drama, utilization=options.duty)
    time.sleep(options.seconds)
    attachment.detach()
    print(json.dumps({"began_s": began_s, "ended_s": time.time(), "launches": 0}), flush=True)


if __name__ == "__main__":
    main()
