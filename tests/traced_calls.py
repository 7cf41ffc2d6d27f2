"""What single calls request from the caching allocator, as the tracer records them; all calls in one process."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from traced_scripts import traced

HEAD = """
import copy
import torch
from torch import nn
from torch.nn import functional as F
one = torch.ones(1, device="cuda", requires_grad=True)
optimizer = torch.optim.SGD([one], lr=0.1)
def made(*shape, **kind):
    return torch.randn(*shape, device="cuda", **kind).requires_grad_()
def marked(call):
    torch.empty(MARK, device="cuda", dtype=torch.uint8)
    return call()
"""
MARK = 7777  # a size that nothing else has; it stands before each call


def requests_of_calls(
    folder: Path, calls: Mapping[str, tuple[str, str]], capability: tuple[int, int] = (8, 0)
) -> dict[str, list[int]]:
    """Sizes in the order of their allocation, by name; a call is what is set up before it, and the expression."""
    lines = [HEAD.replace("MARK", str(MARK))]
    for setup, call in calls.values():
        lines += [setup, f"kept = marked(lambda: {call})", "del kept", "marked(lambda: None)"]
    lines.append("one.sum().backward()\noptimizer.step()")
    trace = traced(folder, "\n".join(lines), capability=capability)
    found: dict[str, list[int]] = {}
    names = iter(calls)
    inside = False
    for event in trace.events:
        if event.action == "alloc" and event.bytes == MARK:
            inside = not inside
            if inside:
                sizes = found[next(names)] = []
        elif event.action == "alloc" and event.bytes and inside:
            sizes.append(event.bytes)
    return found
