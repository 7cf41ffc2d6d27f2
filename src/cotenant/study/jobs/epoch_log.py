"""Records the epochs of a training script for `cotenant study`: one JSON line per epoch.

A script of your own does the same: append `{"began_s": ..., "ended_s": ...}`, in seconds since the epoch (time.time),
to the file that the variable COTENANT_STUDY_EPOCHS names. Imports the standard library only, since it runs in the job's
Python.
"""

from __future__ import annotations

import json
import os
import time


def record_epoch(began_s: float, **fields: float) -> None:
    """Append one epoch that began at `began_s` and ends now; nothing outside of a study."""
    path = os.environ.get("COTENANT_STUDY_EPOCHS")
    if path:
        with open(path, "a", encoding="utf-8") as file:  # noqa: PTH123
            file.write(json.dumps({"began_s": began_s, "ended_s": time.time(), **fields}) + "\n")
