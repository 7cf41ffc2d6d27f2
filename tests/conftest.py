"""Import path and guards shared by all tests."""

from __future__ import annotations

import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

_OWN_PID = os.getpid()


def pytest_runtest_setup():
    """Forbid autograd in the pytest process: its forks could not trace functions afterwards."""
    torch = sys.modules.get("torch")
    if torch is None or getattr(torch.autograd.backward, "guards", False):
        return
    backward = torch.autograd.backward

    def guarded(*args, **kwargs):
        assert os.getpid() != _OWN_PID, "train `apart`: later tests trace functions in forks of this process"
        return backward(*args, **kwargs)

    guarded.guards = True
    torch.autograd.backward = guarded
