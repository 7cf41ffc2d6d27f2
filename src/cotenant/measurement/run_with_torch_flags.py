"""Sets flags of `torch.backends`, then runs a script.

    python run_with_torch_flags.py cudnn.benchmark=true train.py ...

A program of its own that imports only the standard library and torch, since it runs in the job's Python.
"""

from __future__ import annotations

import json
import runpy
import sys
from pathlib import Path


def main() -> None:
    """Set all flags before the script; the rest are its arguments."""
    words = sys.argv[1:]
    sys.path.pop(0)  # this folder
    import torch

    while words and not words[0].endswith(".py"):
        name, _, text = words.pop(0).partition("=")
        *path, last = name.split(".")
        holder = torch.backends
        for part in path:
            holder = getattr(holder, part)
        if not hasattr(holder, last):
            raise SystemExit(f"torch.backends has no `{name}`")
        setattr(holder, last, json.loads(text))
    sys.argv = words
    sys.path.insert(0, str(Path(words[0]).resolve().parent))
    runpy.run_path(words[0], run_name="__main__")


if __name__ == "__main__":
    main()
