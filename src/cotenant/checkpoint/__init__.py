"""Lets a training script be moved to another GPU: it saves its state after a signal, and continues from there.

    from cotenant import checkpoint
    ...
    checkpoint.install()
    for step in range(first_step, steps):
        train(step)
        if checkpoint.should_stop():
            save(step + 1)
            checkpoint.exit_saved()

Submit it with `--checkpointable`. The manager starts the same command again, so the script begins by loading what it
saved, if there is anything. Outside of a job SIGTERM has the same effect.

Of several processes all must save at the same step: `should_stop_together` reduces over `torch.distributed`. For
`transformers.Trainer`, Lightning and accelerate there are `for_trainer`, `for_lightning` and `for_accelerate`, which
import these libraries only when they are called. A launcher such as `torchrun` has exit codes of its own; `python -m
cotenant.checkpoint torchrun ...` exits with 85 once all of its processes have saved.

Any program can do the same without this package: after the signal that `$COTENANT_CHECKPOINT_SIGNAL` names, save the
state and exit with code 85. With any other code but 0 the job is started again, too, but counts as not saved.

A module of its own: scripts import it by this name.
"""

from __future__ import annotations

from cotenant.checkpoint.libraries import AccelerateCheckpoint, for_accelerate, for_lightning, for_trainer, newest
from cotenant.checkpoint.signals import EXIT_SAVED, exit_saved, install, should_stop, should_stop_together

__all__ = [
    "EXIT_SAVED",
    "AccelerateCheckpoint",
    "exit_saved",
    "for_accelerate",
    "for_lightning",
    "for_trainer",
    "install",
    "newest",
    "should_stop",
    "should_stop_together",
]
