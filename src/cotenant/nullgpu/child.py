"""In the process on the null GPU: runs a script for some optimizer steps and writes what torch counted.

Standard library and the job's own torch only: it runs in the job's environment, which need not have this package unless
the request names a function of it, a `prelude`.
"""

from __future__ import annotations

import importlib
import json
import os
import runpy
import sys
import traceback
from typing import Any

MAX_FRAMES = 5


class StepsDone(BaseException):
    """Enough steps were seen. Not an `Exception`, so that a script's own handlers let it pass."""


def main(request: dict[str, Any]) -> None:
    """Write the answer file, whatever the script does; never returns."""
    import torch
    from torch.optim.optimizer import register_optimizer_step_post_hook

    if request["record"]:
        torch.cuda.memory._record_memory_history(max_entries=2_000_000, stacks="python", context="alloc")
    steps = 0

    def count(optimizer: Any, args: Any, kwargs: Any) -> None:
        nonlocal steps
        steps += 1
        if steps >= request["steps"]:
            raise StepsDone

    register_optimizer_step_post_hook(count)
    if request["prelude"]:
        module, _, function = request["prelude"].partition(":")
        getattr(importlib.import_module(module), function)()
    script, *arguments = request["command"]
    sys.argv = [script, *arguments]
    sys.path.insert(0, os.path.dirname(os.path.abspath(script)))
    ended, error = "script", ""
    try:
        runpy.run_path(script, run_name="__main__")
    except StepsDone:
        ended = "steps"
    except SystemExit as exit_of_script:
        if exit_of_script.code not in (None, 0):
            ended, error = "raised", f"SystemExit: {exit_of_script.code}"
    except BaseException as raised:
        traceback.print_exc()
        ended, error = "raised", f"{type(raised).__name__}: {str(raised)[:500]}"
    answer = {
        "peak_allocated_bytes": torch.cuda.max_memory_allocated(),
        "peak_reserved_bytes": torch.cuda.max_memory_reserved(),
        "steps": steps,
        "ended": ended,
        "error": error,
        "torch": torch.__version__,
        "history": history(torch) if request["record"] else {},
    }
    partial = request["answer"] + ".partial"
    with open(partial, "w") as file:
        json.dump(answer, file)
    os.replace(partial, request["answer"])
    os._exit(0)  # threads of the script, and destructors that would use the device, are not waited for


def history(torch: Any) -> dict[str, Any]:
    """All allocations and frees of the first GPU, as `RequestHistory` has them.

    Source: torch/cuda/memory.py, `_snapshot`. A free is `completed` when no other stream uses the block.
    """
    events: list[int] = []
    places: dict[str, int] = {}
    place_of: list[int] = []
    live: dict[int, int] = {}
    for event in torch.cuda.memory._snapshot()["device_traces"][0]:
        action, address = event["action"], event.get("addr")  # an `oom` has none
        if action == "alloc":
            events.append(event["size"])
            place_of.append(places.setdefault(place(event.get("frames", ())), len(places)))
            live[address] = len(place_of)
        elif action == "free_completed" and address in live:
            events.append(-live.pop(address))
    return {"events": events, "places": list(places), "place_of": place_of}


def place(frames: Any) -> str:
    """The innermost frames as text, without those in which a module only calls another."""
    own = [frame for frame in frames if not frame["filename"].endswith("torch/nn/modules/module.py")]
    named = [f"{frame['name']} ({os.path.basename(frame['filename'])}:{frame['line']})" for frame in own]
    return " < ".join(named[:MAX_FRAMES])


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
