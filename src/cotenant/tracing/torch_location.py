"""Where PyTorch is installed.

A module of its own: `script_location` is read where torch is not.
"""

from __future__ import annotations

import os
from pathlib import Path

import torch

TORCH_DIR = str(Path(torch.__file__).parent) + os.sep
"""With the separator: `torchvision` and `torch_geometric` are beside it."""
