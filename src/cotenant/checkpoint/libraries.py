"""Callbacks that save the state when the signal comes, for libraries that have the training loop.

Nothing of a library is imported before its function is called.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from shutil import rmtree
from typing import Any

from cotenant.checkpoint import signals

LIGHTNING_FILE = "cotenant.ckpt"
STEPS_FILE = "cotenant.json"
"""Written into a folder of accelerate when all else is there."""


def for_trainer() -> Any:
    """A callback for `transformers.Trainer` and its descendants, such as those of trl.

        trainer = Trainer(..., callbacks=[checkpoint.for_trainer()])
        trainer.train(resume_from_checkpoint=checkpoint.newest(trainer.args.output_dir))

    At the end of the step in which the signal comes, the trainer saves as at any other step, whatever its
    `save_strategy`, and the process exits. With `save_only_model` nothing can be resumed.
    """
    from transformers import TrainerCallback

    class TrainerSaveCallback(TrainerCallback):  # type: ignore[misc]
        is_last = False

        def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002
            signals.install()

        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> Any:  # noqa: ARG002
            if signals.should_stop_together():
                self.is_last = control.should_save = True
                control.should_evaluate = False  # it may take longer than the time to save
            return control

        def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002
            if self.is_last:
                signals.exit_saved()

    return TrainerSaveCallback()


def for_lightning(folder: str) -> Any:
    """A callback for Lightning's `Trainer`, which saves to a file in `folder`.

        trainer = L.Trainer(..., callbacks=[checkpoint.for_lightning("state")])
        trainer.fit(model, ckpt_path=checkpoint.newest("state"))

    It takes the signal from Lightning's own handlers: that for SIGTERM ends the training without saving, that for
    SIGUSR1 under Slurm requeues the job by `scontrol`, which the manager does itself.
    """
    callback: Any = _lightning().Callback

    class LightningSaveCallback(callback):  # type: ignore[misc]
        def on_train_start(self, trainer: Any, pl_module: Any) -> None:  # noqa: ARG002
            signals.install()

        def on_train_batch_end(self, trainer: Any, *_: Any, **__: Any) -> None:
            if trainer.strategy.reduce_boolean_decision(signals.should_stop(), all=False):
                # Lightning writes a file of another name, and renames it (lightning_fabric, `_atomic_save`).
                trainer.save_checkpoint(Path(folder, LIGHTNING_FILE))
                signals.exit_saved()

    return LightningSaveCallback()


def _lightning() -> Any:
    """Lightning by the name that it has in this environment."""
    try:
        return import_module("lightning.pytorch")
    except ModuleNotFoundError:
        return import_module("pytorch_lightning")


def newest(folder: str) -> str | None:
    """What to resume from: the newest complete checkpoint of either trainer in `folder`; None if there is none.

    `transformers.Trainer` writes `trainer_state.json` last (its `_save_checkpoint`): a folder without it was being
    written when the process was killed.
    """
    file = Path(folder, LIGHTNING_FILE)
    if file.exists():
        return str(file)
    steps = [
        (int(found[1]), path)
        for path in Path(folder).glob("checkpoint-*")
        if (found := re.fullmatch(r"checkpoint-(\d+)", path.name)) and _is_json(path / "trainer_state.json")
    ]
    return str(max(steps)[1]) if steps else None


def _is_json(file: Path) -> bool:
    try:
        json.loads(file.read_bytes())
    except (OSError, ValueError):
        return False
    return True


class AccelerateCheckpoint:
    """Saves and loads the state of an `Accelerator` and the number of steps made, in `folder`.

    The state is in a folder of its own for each save, which counts once `STEPS_FILE` is in it.
    """

    def __init__(self, accelerator: Any, folder: str) -> None:
        self._accelerator = accelerator
        self._folder = Path(folder)
        signals.install()

    def load(self) -> int:
        """Load the newest state, after `accelerator.prepare`; the steps made until then, 0 without one."""
        newest_first = sorted(self._saved(), reverse=True)
        if not newest_first:
            return 0
        steps, path = newest_first[0]
        self._accelerator.load_state(str(path))
        return steps

    def step_end(self, steps: int) -> None:
        """Save and exit if any process has received the signal. Call it in all of them after each step.

        `steps`: how many have been made.
        """
        if signals.should_stop_together():
            self.save(steps)
            signals.exit_saved()

    def save(self, steps: int) -> None:
        """Save the state after `steps` steps, and remove older ones. Call it in all processes."""
        accelerator, path = self._accelerator, self._folder / f"steps-{steps}"
        accelerator.save_state(str(path))
        accelerator.wait_for_everyone()
        if accelerator.is_main_process:
            (path / STEPS_FILE).write_text(json.dumps({"steps": steps}))
            for older, old in self._saved():
                if older < steps:
                    rmtree(old, ignore_errors=True)

    def _saved(self) -> Iterator[tuple[int, Path]]:
        for path in self._folder.glob("steps-*"):
            if path.name[6:].isdecimal() and _is_json(path / STEPS_FILE):
                yield int(path.name[6:]), path


def for_accelerate(accelerator: Any, folder: str) -> AccelerateCheckpoint:
    """Saving and loading for a training loop with `accelerate`.

    saved = checkpoint.for_accelerate(accelerator, "state")
    for step in range(saved.load(), steps):
        train(step)
        saved.step_end(step + 1)
    """
    return AccelerateCheckpoint(accelerator, folder)
