"""How many elements of a mask can be true, where its values are not known: no more than were set.

Detectors draw samples by setting a few places of an empty mask, and then look for what is set.
"""

from __future__ import annotations

from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

_ATTRIBUTE = "_cotenant_most"
_EMPTY = frozenset({"zeros", "zeros_like", "new_zeros", "zero_"})
_KEEP = frozenset({"clone", "_to_copy", "detach", "alias"})
_EITHER = frozenset({"bitwise_or", "logical_or", "__or__", "add"})
KINDS = frozenset({torch.bool, torch.uint8})


def most(tensor: Any) -> int | None:
    """The most elements that can be true; None: not known."""
    return getattr(tensor, _ATTRIBUTE, None)


def follow(func: Any, args: Any, out: FakeTensor) -> None:
    """Note for `out`, a mask that `func` gave or wrote to, how much of it can be true."""
    name = func._opname
    found: int | None = None
    if name in _EMPTY:
        found = 0
    elif name in _KEEP:
        found = most(args[0])
    elif name in _EITHER and len(args) > 1:
        both = most(args[0]), most(args[1])
        found = both[0] + both[1] if both[0] is not None and both[1] is not None else None
    elif name in ("index_put_", "index_put"):
        before, places = most(args[0]), [each for each in args[1] if each is not None]
        if before is not None and all(each.dtype not in KINDS for each in places):
            found = before + max((each.numel() for each in places), default=out.numel())
    elif not name.endswith("_"):
        return
    if found is not None or hasattr(out, _ATTRIBUTE):
        setattr(out, _ATTRIBUTE, found)
