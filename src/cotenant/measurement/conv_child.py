"""Measures convolutions one by one: `python conv_child.py CASES.json LINES.jsonl ANSWER.json`.

Only the standard library and torch: it runs in the job's own Python. A case that fails is told, not raised.
"""

from __future__ import annotations

import json
import os
import pathlib
import sys
from collections.abc import Callable
from typing import Any

HISTORY_ENTRIES = 1_000_000


def main() -> None:
    """Measure all cases; each is on the disk before the next."""
    sys.path.pop(0)  # this folder
    import torch

    cases = json.loads(pathlib.Path(sys.argv[1]).read_text())
    torch.cuda.init()
    properties = torch.cuda.get_device_properties(0)
    gpu = {
        "name": properties.name,
        "capability": [properties.major, properties.minor],
        "sm_count": properties.multi_processor_count,
        "cudnn": torch.backends.cudnn.version(),
        "torch": torch.__version__,
    }
    torch.cuda.memory._record_memory_history("all", context=None, max_entries=HISTORY_ENTRIES)
    measure({**cases[0], "dtype": "float32"}, torch)  # handles and their memory, before anything counts
    with pathlib.Path(sys.argv[2]).open("a") as lines:
        for case in cases:
            try:
                calls = measure(case, torch)
            except Exception as error:
                torch.cuda.synchronize()
                problem = {"problem": _told(error)}
                calls = {"conv_forward": problem, "conv_dgrad": problem, "conv_wgrad": problem}
            lines.write(json.dumps({"case": case, "gpu": gpu, "calls": calls}) + "\n")
            lines.flush()
            torch.cuda.empty_cache()
    answer = pathlib.Path(sys.argv[3])
    scratch = answer.with_suffix(".part")
    scratch.write_text(json.dumps({"gpu": gpu, "cases": len(cases)}))
    scratch.replace(answer)
    os._exit(0)


def measure(case: dict[str, Any], torch: Any) -> dict[str, dict[str, Any]]:
    """Workspaces of the three calls of one convolution."""
    dtype = getattr(torch, case["dtype"])
    layout = torch.channels_last if case["channels_last"] else torch.contiguous_format

    def tensor(shape: list[int]) -> Any:
        return torch.zeros(shape, dtype=dtype, device="cuda").contiguous(memory_format=layout)

    x, w, y = tensor(case["x"]), tensor(case["w"]), tensor(case["y"])
    settings = (case["stride"], case["padding"], case["dilation"], False, [0, 0], case["groups"])

    def backward(mask: list[bool]) -> Any:
        return torch.ops.aten.convolution_backward(y, x, w, None, *settings, mask)

    calls: dict[str, Callable[[], Any]] = {
        "conv_forward": lambda: torch.ops.aten.convolution(x, w, None, *settings),
        "conv_dgrad": lambda: backward([True, False, False]),
        "conv_wgrad": lambda: backward([False, True, False]),
    }
    found = {}
    for name, call in calls.items():
        try:
            found[name] = watch(call, torch)
        except Exception as error:
            torch.cuda.synchronize()
            found[name] = {"problem": _told(error)}
    return found


def watch(call: Callable[[], Any], torch: Any) -> dict[str, Any]:
    """What `call` took from the allocator and gave back before it returned."""
    cuda = torch.cuda
    cuda.synchronize()
    cuda.reset_peak_memory_stats()
    before = len(trace(torch))
    result = call()
    cuda.synchronize()
    events = trace(torch)[before:]
    peak_bytes, kept_bytes = cuda.max_memory_allocated(), cuda.memory_allocated()
    del result
    temporaries = given_back(events)
    return {"workspace_bytes": sum(temporaries), "temporaries": temporaries, "peak_bytes": peak_bytes - kept_bytes}


def trace(torch: Any) -> list[dict[str, Any]]:
    """The allocator's history so far."""
    events: list[dict[str, Any]] = torch.cuda.memory._snapshot()["device_traces"][0]
    return events


def given_back(events: list[dict[str, Any]]) -> list[int]:
    """Requested sizes of blocks that were both taken and given back, in the order they were taken."""
    live: dict[int, tuple[int, int]] = {}
    ended: list[tuple[int, int]] = []
    for number, event in enumerate(events):
        if event["action"] == "alloc":
            live[event["addr"]] = (number, int(event["size"]))
        elif event["action"] == "free_requested" and event["addr"] in live:
            ended.append(live.pop(event["addr"]))
    return [size for _, size in sorted(ended)]


def _told(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0][:200] if lines else ''}"


if __name__ == "__main__":
    main()
