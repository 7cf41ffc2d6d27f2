"""Validations that a library's loop runs only every so many steps or epochs."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

pytest.importorskip("torch", reason="tracing needs torch")

from cotenant.tracing.training.library_validations import validating_after_short_epochs, validation_patches


def evaluates(step, *, max_steps=1000, eval_steps=500, strategy="steps", delay=0, draining=True):
    """Whether Hugging Face's Trainer evaluates after `step` if the trace of its training is complete."""
    trainer_callback = pytest.importorskip("transformers.trainer_callback")
    (patch, *_) = validation_patches(SimpleNamespace(draining=draining))
    on_step_end = patch.replacement(trainer_callback.DefaultFlowCallback.on_step_end)
    args = SimpleNamespace(logging_first_step=False, logging_strategy="no", save_strategy="no", eval_steps=eval_steps)
    args.eval_strategy, args.eval_delay = strategy, delay
    state = SimpleNamespace(global_step=step, max_steps=max_steps, eval_steps=eval_steps, logging_steps=1, save_steps=1)
    control = SimpleNamespace(should_evaluate=False, should_training_stop=False)
    wanted = on_step_end(trainer_callback.DefaultFlowCallback(), args, state, control).should_evaluate
    assert (state.global_step, control.should_training_stop) == (step, False)
    return wanted


@pytest.mark.parametrize("max_steps", [1000, 1100])
def test_a_trainer_evaluates_after_the_last_traced_step(max_steps):
    assert evaluates(3, max_steps=max_steps)


@pytest.mark.parametrize(
    "options",
    [{"draining": False}, {"strategy": "no"}, {"strategy": "epoch"}, {"delay": 2000}],
    ids=["more steps are traced", "no evaluation", "after each epoch", "later than its last step"],
)
def test_a_trainer_evaluates_only_where_it_would_later(options):
    assert not evaluates(3, **options)


def lightning_loop(
    calls, *, every=1, max_epochs=10, enabled=True, accumulates_itself=False, between_steps=False, **hooks
):
    """Lightning's loop over an epoch of 100 batches, in the first epoch and behind its third batch."""
    return SimpleNamespace(
        batch_progress=SimpleNamespace(current=SimpleNamespace(ready=3)),
        trainer=SimpleNamespace(
            num_training_batches=100,
            check_val_every_n_epoch=every,
            max_epochs=max_epochs,
            enable_validation=enabled,
            strategy=SimpleNamespace(handles_gradient_accumulation=accumulates_itself),
            lightning_module=SimpleNamespace(**hooks),
        ),
        val_loop=SimpleNamespace(run=lambda: calls.append("validate")),
        _should_check_val_epoch=lambda: enabled and every in (None, 1),
        _accumulated_batches_reached=lambda: not between_steps,
    )


def run(loop, *, draining=True):
    validating_after_short_epochs(SimpleNamespace(draining=draining), lambda self, fetcher: None)(loop, None)


@pytest.mark.parametrize(
    ("accumulates_itself", "between_steps", "frees"),
    [(False, False, True), (False, True, True), (True, False, True), (True, True, False)],
)
def test_lightning_frees_gradients_before_the_validation_of_a_short_epoch(accumulates_itself, between_steps, frees):
    calls = []
    loop = lightning_loop(
        calls,
        accumulates_itself=accumulates_itself,
        between_steps=between_steps,
        on_validation_model_zero_grad=lambda: calls.append("free"),
    )
    run(loop)
    assert calls == (["free", "validate"] if frees else ["validate"])
    assert loop.trainer.training


@pytest.mark.parametrize(
    ("options", "draining", "validates"),
    [
        ({"every": 1}, False, True),
        ({"every": None}, True, True),
        ({"every": 10}, True, True),
        ({"every": 11}, True, False),
        ({"every": 11, "max_epochs": -1}, True, True),
        ({"every": 11, "max_epochs": None}, True, True),
        ({"every": 10}, False, False),
        ({"enabled": False}, True, False),
    ],
    ids=["each epoch", "by steps", "the tenth", "after the end", "no end", "none", "more is traced", "disabled"],
)
def test_lightning_validates_once_if_a_later_epoch_would(options, draining, validates):
    calls = []
    run(lightning_loop(calls, **options), draining=draining)
    assert calls == ["validate"] * validates
