"""When Python collects garbage: rarely while a script imports and prepares, as usual once it has storages on a GPU.

A collection walks over all modules loaded so far and finds nothing: a quarter of the time of `import torch` (CPython
3.11). Cycles that hold storages of a GPU are freed by collections, so the trace has as many of them as the script.
Objects that were made until then count as old, which they are in the script's own process after hundreds of
collections; else the next ones of the young and of the middle generation would walk over all of them, too.

CPython walks over all objects when those that became old since the last such walk are a quarter of the old ones. It
knows how many are old from these walks alone, and here none has been: the first one would come after 11 collections of
the middle generation, take 0.3 s where a script has imported transformers, and find nothing. So it waits for as many
collections as can make a quarter old. Source: Modules/gcmodule.c, `gc_collect_generations`.

A module of its own: `bootstrap` needs it before anything else is imported, the recorder at the first storage.
"""

from __future__ import annotations

import gc
import sys

_USUAL = gc.get_threshold()
_RARELY = (1_000_000, 50, 1_000)  # a trace imports 200,000 to 300,000 objects with torch, 850,000 with TRL
_hides = False  # in forks, too
_BLOCKS_PER_OBJECT = 2.5  # allocated by Python; 2.3 to 2.4 where torch, pandas, transformers and others are imported


def collect_rarely() -> None:
    """From now on, until a storage on a GPU; a script that has set thresholds of its own keeps them."""
    if gc.get_threshold() == _USUAL:
        gc.set_threshold(*_RARELY)
    _age()


def collect_as_usual() -> None:
    """As Python does by itself, unless the script has set thresholds of its own."""
    if gc.get_threshold() == _RARELY:
        young, middle, old = _USUAL
        gc.set_threshold(young, middle, max(old, _collections_to_a_quarter(young, middle)))
        _age()


def hide_objects() -> None:
    """Hide all objects from the collector: a collection in a fork would write to shared pages, and so copy them."""
    global _hides
    gc.freeze()
    _hides = True


def _collections_to_a_quarter(young: int, middle: int) -> int:
    """Collections of the middle generation that can make old as many objects as a quarter of those that are now."""
    return int(sys.getallocatedblocks() / _BLOCKS_PER_OBJECT / 4 / ((young + 1) * (middle + 1)))


def _age() -> None:
    """Move all objects to the oldest generation, without a walk over them. Source: Modules/gcmodule.c, `gc_unfreeze`.

    Nothing is moved where objects are hidden from collections, as a fork server or a script hides them. To count a
    million hidden objects takes 0.2 s: those of a fork server are not counted.
    """
    if not (_hides or gc.get_freeze_count()):
        gc.freeze()
        gc.unfreeze()
