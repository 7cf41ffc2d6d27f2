"""Measures convolutions one by one: `python conv_child.py CASES.json LINES.jsonl ANSWER.json`.

Imports only the standard library and torch, since it runs in the job's Python. A case that fails is reported as such.
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
    """Measure all cases; each result is written before the next case."""
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
    measure({**cases[0], "dtype": "float32"}, torch)  # creates handles and their workspaces before the first case
    with pathlib.Path(sys.argv[2]).open("a") as lines:
        for case in cases:
            try:
                calls = measure(case, torch)
            except Exception as error:
                torch.cuda.synchronize()
                problem = {"problem": _first_line(error)}
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
            found[name] = {"problem": _first_line(error)}
    return found


def watch(call: Callable[[], Any], torch: Any) -> dict[str, Any]:
    """Blocks that `call` allocated and freed before it returned."""
    cuda = torch.cuda
    cuda.synchronize()
    cuda.reset_peak_memory_stats()
    before = len(trace(torch))
    result = call()
    cuda.synchronize()
    events = trace(torch)[before:]
    peak_bytes, remaining_bytes = cuda.max_memory_allocated(), cuda.memory_allocated()
    del result
    temporaries = freed_sizes(events)
    return {"workspace_bytes": sum(temporaries), "temporaries": temporaries, "peak_bytes": peak_bytes - remaining_bytes}


def trace(torch: Any) -> list[dict[str, Any]]:
    """The allocator's history so far."""
    events: list[dict[str, Any]] = torch.cuda.memory._snapshot()["device_traces"][0]
    return events


def freed_sizes(events: list[dict[str, Any]]) -> list[int]:
    """Requested sizes of blocks that were allocated and freed, in the order of allocation."""
    live: dict[int, tuple[int, int]] = {}
    ended: list[tuple[int, int]] = []
    for number, event in enumerate(events):
        if event["action"] == "alloc":
            live[event["addr"]] = (number, int(event["size"]))
        elif event["action"] == "free_requested" and event["addr"] in live:
            ended.append(live.pop(event["addr"]))
    return [size for _, size in sorted(ended)]


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0][:200] if lines else ''}"


if __name__ == "__main__":
    main()
