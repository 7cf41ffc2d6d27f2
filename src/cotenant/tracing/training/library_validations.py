"""Validations that a library's own loop runs only every so many steps or epochs: the trace has one, at its end.

A trace ends after a few steps. Conditions in a script are found in its source (`conditional_work`), those of libraries
are known here. What a library validates behind every epoch needs nothing, since the traced epoch ends, too, unless the
library counts batches to know when it does.
"""

from __future__ import annotations

import copy
import functools
import weakref
from collections.abc import Callable
from types import ModuleType
from typing import Any

from cotenant.tracing.patches.registry import Entry, ImportPatch, Patch, PatchContext, Phase
from cotenant.tracing.training.training_progress import TrainingProgress

_Callback = Callable[..., Any]


def patches(context: PatchContext) -> list[Entry]:
    """Those of a trace."""
    entries = validation_patches(context.observer.progress)
    return entries + synthetic_data_patches() if context.options.synthetic_data else entries


def synthetic_data_patches() -> list[Entry]:
    """Lightning's limits on validations, which count batches of the user's own data."""
    return [
        Patch(
            target=f"{name}.loops.fit_loop:_FitLoop.setup_data", phase=Phase.LIBRARIES, wraps=True,
            replacement=_validating_within_an_epoch,
            reason="Lightning refuses a `val_check_interval` beyond the batches of an epoch; made-up data have few.",
            source="lightning/pytorch/loops/fit_loop.py, `_FitLoop.setup_data`",
            missing="Lightning before 2.0",
        )
        for name in ("lightning.pytorch", "pytorch_lightning")
    ]  # fmt: skip


def validation_patches(progress: TrainingProgress) -> list[Entry]:
    """Loops of Hugging Face's Trainer, also of the trainers made from it, of Lightning, Ignite, Keras and MMEngine."""
    return [
        Patch(
            target="transformers.trainer_callback:DefaultFlowCallback.on_step_end", phase=Phase.LIBRARIES, wraps=True,
            replacement=functools.partial(_evaluating_after_last_step, progress),
            reason="Trainer evaluates every `eval_steps` steps, and few are traced.",
            source="transformers/trainer_callback.py, `DefaultFlowCallback.on_step_end`",
        ),
        *(
            ImportPatch(
                target=f"{name}.loops.training_epoch_loop", phase=Phase.LIBRARIES,
                expand=functools.partial(_lightning_patches, progress),
                reason="Lightning counts batches and epochs to know when to validate; here they end earlier.",
                source="lightning/pytorch/loops/training_epoch_loop.py, `_TrainingEpochLoop.run`",
            )
            for name in ("lightning.pytorch", "pytorch_lightning")
        ),
        Patch(
            target="ignite.engine.events:CallableEventWithFilter.every_event_filter", phase=Phase.LIBRARIES, wraps=True,
            replacement=functools.partial(_handling_last_event, progress),
            reason="Handlers run every so many iterations or epochs, and few are traced.",
            source="ignite/engine/events.py, `CallableEventWithFilter.every_event_filter`",
        ),
        Patch(
            target="ignite.engine.engine:Engine._fire_event", phase=Phase.LIBRARIES, wraps=True,
            replacement=functools.partial(_ending_ignite_epochs, progress),
            reason="Ignite iterates a loader again until it has had the batches of an epoch; here epochs end earlier.",
            source="ignite/engine/engine.py, `Engine._run_once_on_dataset_as_gen`",
        ),
        Patch(
            target="keras.src.trainers.trainer:Trainer._should_eval", phase=Phase.LIBRARIES, wraps=True,
            replacement=functools.partial(_evaluating_after_last_epoch, progress),
            reason="Keras validates every `validation_freq` epochs, and one is traced.",
            source="keras/src/trainers/trainer.py, `Trainer._should_eval`",
        ),
        *(
            Patch(
                target=f"mmengine.runner.loops:{method}", phase=Phase.LIBRARIES, wraps=True,
                replacement=functools.partial(_validating_at_the_end, progress, counter),
                reason="MMEngine validates every `val_interval` iterations or epochs, and few are traced.",
                source="mmengine/runner/loops.py, `IterBasedTrainLoop.run`",
            )
            for method, counter in (("EpochBasedTrainLoop.run_epoch", "epoch"), ("IterBasedTrainLoop.run_iter", "iter"))
        ),
    ]  # fmt: skip


def _evaluating_after_last_step(progress: TrainingProgress, original: _Callback) -> _Callback:
    """`on_step_end`, which also wants an evaluation after the last traced step, if it would after a later one."""

    @functools.wraps(original)
    def on_step_end(self: Any, args: Any, state: Any, control: Any, **kwargs: Any) -> Any:
        control = original(self, args, state, control, **kwargs)
        if progress.draining and not control.should_evaluate:
            control.should_evaluate = any(
                _at_step(original, self, args, state, control, step, **kwargs).should_evaluate
                for step in _later_steps(args, state)
            )
        return control

    return on_step_end


def _later_steps(args: Any, state: Any) -> list[int]:
    """The last step, and the last one that is a multiple of `eval_steps`, which older releases leave in `args`."""
    every = getattr(state, "eval_steps", None) or args.eval_steps
    last: int = state.max_steps
    return [last, *([last - last % every] if isinstance(every, int) and 0 < every <= last else [])]


def _at_step(original: _Callback, callback: Any, args: Any, state: Any, control: Any, step: int, **kwargs: Any) -> Any:
    """What `on_step_end` wants after `step`."""
    state = copy.copy(state)
    state.global_step = step
    return original(callback, args, state, copy.copy(control), **kwargs)


def _lightning_patches(progress: TrainingProgress, module: ModuleType) -> list[Patch]:
    if not hasattr(module._TrainingEpochLoop, "_should_check_val_epoch"):
        return []
    return [
        Patch(
            target=f"{module.__name__}:_TrainingEpochLoop.run",
            phase=Phase.LIBRARIES,
            replacement=functools.partial(validating_after_short_epochs, progress),
            wraps=True,
            reason="It validates after the last batch that it expects.",
        )
    ]


def validating_after_short_epochs(progress: TrainingProgress, original: _Callback) -> _Callback:
    """`_TrainingEpochLoop.run`, with the validation for which Lightning waits until its last batch or a later epoch.

    Lightning 2.2 and later free the gradients before it (`_TrainingEpochLoop.on_advance_end`), except where a strategy
    that accumulates them by itself is between two steps.
    """

    def run(self: Any, data_fetcher: Any) -> None:
        original(self, data_fetcher)
        validates = self._should_check_val_epoch() or (progress.draining and _validates_later(self.trainer))
        if self.batch_progress.current.ready < self.trainer.num_training_batches and validates:
            self.trainer.validating = True
            frees_gradients = getattr(self.trainer.lightning_module, "on_validation_model_zero_grad", None)
            steps_at_the_end = not self.trainer.strategy.handles_gradient_accumulation
            if frees_gradients is not None and (steps_at_the_end or self._accumulated_batches_reached()):
                frees_gradients()
            self.val_loop.run()
            self.trainer.training = True

    return run


def _validating_within_an_epoch(original: _Callback) -> _Callback:
    """`setup_data`, where an epoch that is too short for an interval of so many batches ends with a validation."""

    @functools.wraps(original)
    def setup_data(self: Any) -> None:
        trainer = self.trainer
        interval = trainer.val_check_interval
        if not isinstance(interval, int) or trainer.check_val_every_n_epoch is None:
            original(self)
            return
        trainer.val_check_interval = 1.0
        try:
            original(self)
        finally:
            trainer.val_check_interval = interval
        trainer.val_check_batch = min(interval, self.max_batches)

    return setup_data


def _validates_later(trainer: Any) -> bool:
    """Whether the first validation comes after an epoch that is not traced; `max_epochs` of -1 or None has no end."""
    every, epochs = trainer.check_val_every_n_epoch, trainer.max_epochs
    return bool(trainer.enable_validation) and (epochs is None or epochs < 0 or (every or 1) <= epochs)


def _evaluating_after_last_epoch(progress: TrainingProgress, original: _Callback) -> _Callback:
    """`_should_eval`, which is also true after the traced epoch; how many there are is not known here."""

    @functools.wraps(original)
    def should_eval(self: Any, epoch: int, validation_freq: Any) -> bool:
        return bool(original(self, epoch, validation_freq)) or (progress.draining and bool(validation_freq))

    return should_eval


def _ending_ignite_epochs(progress: TrainingProgress, original: _Callback) -> _Callback:
    """`_fire_event`, which ends the epoch of an engine whose loader has run dry, as its `terminate_epoch` does.

    So does its run end behind the traced epoch: handlers of `COMPLETED` follow, and the script's work behind it.
    """

    @functools.wraps(original)
    def fire_event(self: Any, event_name: Any, *event_args: Any, **event_kwargs: Any) -> None:
        original(self, event_name, *event_args, **event_kwargs)
        name = getattr(event_name, "name", "")
        if progress.ending_epoch and name == "DATALOADER_STOP_ITERATION":
            self.terminate_epoch()
        elif progress.draining and name == "EPOCH_COMPLETED" and self.state.epoch < (self.state.max_epochs or 1):
            progress.epoch_ended()
            self.terminate()

    return fire_event


def _handling_last_event(progress: TrainingProgress, original: _Callback) -> _Callback:
    """`every_event_filter`, whose filter also lets the first event pass that comes when the trace is complete."""

    @functools.wraps(original)
    def every_event_filter(every: int) -> _Callback:
        passes, has_passed = original(every), False

        @functools.wraps(passes)
        def filtered(engine: Any, event: int) -> bool:
            nonlocal has_passed
            if passes(engine, event):
                return True
            if not progress.draining or has_passed:
                return False
            has_passed = every <= _last_event(engine.state, event)
            return has_passed

        return filtered

    return staticmethod(every_event_filter)


def _last_event(state: Any, event: int) -> float:
    """The number of the last event of the kind whose number is `event` now: of epochs, or of iterations."""
    epochs, length = state.max_epochs or 1, state.epoch_length
    if event == state.epoch != state.iteration:
        return float(epochs)
    return epochs * length if length else float("inf")


def _validating_at_the_end(progress: TrainingProgress, counter: str, original: _Callback) -> _Callback:
    """An epoch or an iteration of MMEngine, with a validation after the last traced one if none comes by itself.

    `counter`: of epochs or iterations. MMEngine validates after the last one in any case.
    """
    validated: weakref.WeakSet[Any] = weakref.WeakSet()

    @functools.wraps(original)
    def run(self: Any, *args: Any) -> Any:
        result = original(self, *args)
        done, last = getattr(self, f"_{counter}"), getattr(self, f"_max_{counter}s")
        comes = done >= self.val_begin and (done % self.val_interval == 0 or done == last)
        if progress.draining and not comes and self not in validated and last >= self.val_begin:
            validated.add(self)
            if self.runner.val_loop is not None:
                self.runner.val_loop.run()
        return result

    return run
