"""Whether the signal to save the state has come, and how a job reports that it has saved. Standard library only."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from pathlib import Path
from types import FrameType
from typing import NoReturn

EXIT_SAVED = 85
"""By this exit code a job says that its state is saved; `scheduling/recovery.py` has the rule."""
SAVED_DIR_ENV = "COTENANT_SAVED_DIR"
"""Folder in which the processes of a launcher note that they have saved."""
OTHERS_TIMEOUT_S = 30.0
"""How long a process waits for the others to save: a launcher ends them as soon as one has ended."""

_stop_requested = False


def install(number: int | None = None) -> None:
    """Let a signal set what `should_stop` answers; by default the one that the manager sends to this job.

    Call it in the main thread, before the first step. A library that sets a handler for the same signal must do so
    before.

    Raises:
        ValueError: this is not the main thread.
    """
    signal.signal(checkpoint_signal() if number is None else number, _request_stop)


def checkpoint_signal() -> signal.Signals:
    """The signal that the manager sends to this job."""
    name = os.environ.get("COTENANT_CHECKPOINT_SIGNAL", "TERM")
    found: signal.Signals = getattr(signal, f"SIG{name}", signal.SIGTERM)
    return found


def _request_stop(_number: int, _frame: FrameType | None) -> None:
    global _stop_requested
    _stop_requested = True


def should_stop() -> bool:
    """Whether this process has received the signal to save its state and end. Cheap enough for every step."""
    return _stop_requested


def should_stop_together() -> bool:
    """Whether any process of the `torch.distributed` group has received the signal; all get the same answer.

    All must call it after the same steps. It reduces one number over the group, and waits for it.
    """
    torch = sys.modules.get("torch")
    if torch is None or not torch.distributed.is_available() or not torch.distributed.is_initialized():
        return _stop_requested
    group = torch.distributed
    device = torch.cuda.current_device() if group.get_backend() == "nccl" else "cpu"
    received = torch.tensor([int(_stop_requested)], device=device)
    group.all_reduce(received, op=group.ReduceOp.MAX)
    return bool(received.item())


def exit_saved() -> NoReturn:
    """End the process; its state is saved, and its job continues in another attempt."""
    folder, count = os.environ.get(SAVED_DIR_ENV), os.environ.get("LOCAL_WORLD_SIZE", "1")
    if folder is not None:
        give_up_s = time.monotonic() + OTHERS_TIMEOUT_S
        with contextlib.suppress(OSError):
            Path(folder, f"{os.environ.get('LOCAL_RANK', '0')}-of-{count}").touch()
            while not all_saved(folder) and time.monotonic() < give_up_s:
                time.sleep(0.02)
    raise SystemExit(EXIT_SAVED)


def all_saved(folder: str) -> bool:
    """Whether all processes that a launcher has started on this machine have noted in `folder` that they saved."""
    noted = [note.name for note in Path(folder).iterdir()]
    return bool(noted) and len(noted) >= int(noted[0].partition("-of-")[2])
