"""Validations that a library's loop runs only every so many steps or epochs."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

pytest.importorskip("torch", reason="tracing needs torch")

from cotenant.tracing.training.library_validations import (
    synthetic_data_patches,
    validating_after_short_epochs,
    validation_patches,
)


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


@pytest.mark.parametrize(
    ("interval", "every_epoch", "validates_at"),
    [
        pytest.param(10_000, 1, 40, id="longer than an epoch"),
        pytest.param(10, 1, 10, id="shorter"),
        pytest.param(10_000, None, 10_000, id="over epochs"),
        pytest.param(0.5, 1, 20, id="a part of an epoch"),
    ],
)
def test_lightning_validates_within_an_epoch_of_made_up_data(interval, every_epoch, validates_at):
    def setup_data(loop):
        trainer = loop.trainer
        if isinstance(trainer.val_check_interval, int):
            if trainer.val_check_interval > loop.max_batches and trainer.check_val_every_n_epoch is not None:
                raise ValueError
            trainer.val_check_batch = trainer.val_check_interval
        else:
            trainer.val_check_batch = int(loop.max_batches * trainer.val_check_interval)

    patch, _ = synthetic_data_patches()
    trainer = SimpleNamespace(val_check_interval=interval, check_val_every_n_epoch=every_epoch)
    patch.replacement(setup_data)(SimpleNamespace(trainer=trainer, max_batches=40))
    assert (trainer.val_check_batch, trainer.val_check_interval) == (validates_at, interval)


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


def replacement(target, progress):
    (patch,) = [entry for entry in validation_patches(progress) if entry.target.endswith(target)]
    return patch.replacement


@pytest.mark.parametrize(
    ("every", "event", "state", "draining", "passes"),
    [
        (4, 4, {"iteration": 4}, False, True),
        (500, 3, {"iteration": 3}, False, False),
        (500, 3, {"iteration": 3}, True, True),
        (1001, 3, {"iteration": 3}, True, False),
        (5, 1, {"iteration": 3}, True, True),
        (11, 1, {"iteration": 3}, True, False),
        (1001, 3, {"iteration": 3, "epoch_length": None}, True, True),
    ],
    ids=["now", "more is traced", "an iteration", "later than the last", "an epoch", "after the end", "not known"],
)
def test_handlers_of_ignite_run_once_if_they_would_later(every, event, state, draining, passes):
    state = SimpleNamespace(**{"epoch": 1, "max_epochs": 10, "epoch_length": 100} | state)
    progress = SimpleNamespace(draining=draining)
    every_event = replacement("every_event_filter", progress)(lambda every: lambda engine, event: event % every == 0)
    filtered = every_event.__func__(every)
    assert filtered(SimpleNamespace(state=state), event) is passes
    assert filtered(SimpleNamespace(state=state), event) is (passes and event % every == 0)


@pytest.mark.parametrize(
    ("event", "progress", "epoch", "follows"),
    [
        ("DATALOADER_STOP_ITERATION", {"ending_epoch": True}, 1, ["terminate_epoch"]),
        ("DATALOADER_STOP_ITERATION", {}, 1, []),
        ("EPOCH_COMPLETED", {"draining": True}, 1, ["epoch_ended", "terminate"]),
        ("EPOCH_COMPLETED", {"draining": True}, 5, []),
        ("EPOCH_COMPLETED", {}, 1, []),
        ("STARTED", {"ending_epoch": True, "draining": True}, 1, []),
    ],
    ids=["dry", "more is traced", "the traced epoch", "the last epoch", "an epoch before", "another event"],
)
def test_ignite_ends_the_epoch_and_the_run_with_the_trace(event, progress, epoch, follows):
    calls = []

    def call(name):
        return lambda: calls.append(name)

    progress = SimpleNamespace(
        **{"ending_epoch": False, "draining": False, "epoch_ended": call("epoch_ended")} | progress
    )
    engine = SimpleNamespace(state=SimpleNamespace(epoch=epoch, max_epochs=5))
    engine.terminate, engine.terminate_epoch = call("terminate"), call("terminate_epoch")
    fire = replacement("_fire_event", progress)(lambda self, name: calls.append(name.name))
    fire(engine, SimpleNamespace(name=event))
    assert calls == [event, *follows]


@pytest.mark.parametrize("counter", ["epoch", "iter"])
@pytest.mark.parametrize(
    ("draining", "done", "begin", "validates"),
    [(True, 3, 0, True), (False, 3, 0, False), (True, 30, 0, False), (True, 1000, 0, False), (True, 3, 1001, False)],
    ids=["later", "more is traced", "by itself", "behind the last", "never"],
)
def test_mmengine_validates_once_if_a_later_iteration_or_epoch_would(counter, draining, done, begin, validates):
    calls = []
    loop = type("Loop", (), {"val_begin": begin, "val_interval": 30})()
    setattr(loop, f"_{counter}", done)
    setattr(loop, f"_max_{counter}s", 1000)
    loop.runner = SimpleNamespace(val_loop=SimpleNamespace(run=lambda: calls.append("validate")))
    run_one = replacement(f"run_{counter}", SimpleNamespace(draining=draining))(lambda self: "result")
    assert run_one(loop) == "result"
    assert run_one(loop) == "result"
    assert calls == ["validate"] * validates


def test_mmengine_without_a_validation_trains_on():
    loop = type("Loop", (), {"val_begin": 0, "val_interval": 20, "_iter": 3, "_max_iters": 100})()
    loop.runner = SimpleNamespace(val_loop=None)
    assert replacement("run_iter", SimpleNamespace(draining=True))(lambda self: "result")(loop) == "result"


@pytest.mark.parametrize(
    ("every", "draining", "validates"), [(1, False, True), (5, False, False), (5, True, True), ([], True, False)]
)
def test_keras_validates_after_the_traced_epoch(every, draining, validates):
    original = lambda self, epoch, every: isinstance(every, int) and (epoch + 1) % every == 0  # noqa: E731
    should_eval = replacement("_should_eval", SimpleNamespace(draining=draining))(original)
    assert should_eval(None, 0, every) is validates
