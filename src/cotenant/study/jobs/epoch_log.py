"""Trains and records epochs for `cotenant study`: one JSON line per epoch.

A script of your own does the same: append `{"began_s": ..., "ended_s": ...}`, in seconds since the epoch (time.time),
to the file that the variable COTENANT_STUDY_EPOCHS names.

A module of its own: it runs in the job's Python, and imports the standard library only.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterable
from typing import Any


def record_epoch(began_s: float, **fields: float) -> None:
    """Append one epoch that began at `began_s` and ends now; nothing outside of a study."""
    path = os.environ.get("COTENANT_STUDY_EPOCHS")
    if path:
        with open(path, "a", encoding="utf-8") as file:  # noqa: PTH123
            file.write(json.dumps({"began_s": began_s, "ended_s": time.time(), **fields}) + "\n")


def train(epochs: int, batches: Callable[[], Iterable[Any]], step: Callable[[Any], Any]) -> None:
    """Call `step` on each batch of `epochs` epochs, and record these; `step` returns the loss, a tensor."""
    for _ in range(epochs):
        began_s, loss = time.time(), None
        for batch in batches():
            loss = step(batch)
        final = loss.item() if loss is not None else 0.0  # waits for the GPU
        record_epoch(began_s, loss=final)
        print(f"epoch: {time.time() - began_s:.2f} s, loss {final:.3f}", flush=True)
