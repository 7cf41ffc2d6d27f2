"""Branches of a training loop that are still to come, as they are found in the source of this file."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch", reason="tracing needs torch")


def test_the_branch_that_the_script_is_in_is_not_to_come_and_another_is():
    from cotenant.tracing.training.conditional_work import ConditionalWork

    model, found = torch.nn.Linear(1, 1), []
    work = ConditionalWork(SimpleNamespace(warn=print, steps=1, event_count=1))
    for step in range(20):
        if step % 8 == 1:
            model(torch.ones(1))
        if step % 4 == 0:
            found.append(work.extra_steps())
            model(torch.ones(1))
    assert found[0] == 1


def test_a_number_that_the_loop_sets_hides_no_work_of_a_later_epoch():
    from cotenant.tracing.training.conditional_work import ConditionalWork

    model = torch.nn.Linear(1, 1)
    work = ConditionalWork(SimpleNamespace(warn=print, steps=1, event_count=1))

    def train(epoch, best, lowest):
        for _ in range(1):
            work.save_pending()
        if epoch > 5 and best > 1:
            model(torch.ones(1))
        if epoch > 5 and lowest > 1:
            model(torch.ones(1))

    for epoch in range(20):
        best = 0.1 * epoch
        train(epoch, best, 0.0)
        break
    first = train.__code__.co_firstlineno
    assert work.names_in(__file__, range(first + 4, first + 5))
    assert not work.names_in(__file__, range(first + 6, first + 7))


class Counting:
    """Counts its steps in a function that the loop calls."""

    def __init__(self, work):
        self.work, self.step, self.model = work, 0, torch.nn.Linear(1, 1)
        self.options = {"every": 500}

    def run(self, epochs):
        for _ in range(epochs):
            for _ in range(1):
                self.train()
                if (self.step + 1) % 300 == 0:
                    self.model(torch.ones(1))

    def train(self):
        self.work.save_pending()
        self.step += 1
        if self.step % self.options["every"] == 0:
            self.model(torch.ones(1))


def test_work_by_a_counter_of_an_object_is_named():
    from cotenant.tracing.training.conditional_work import ConditionalWork

    work = ConditionalWork(SimpleNamespace(warn=print, steps=1, event_count=1))
    Counting(work).run(1)
    in_loop = Counting.run.__code__.co_firstlineno + 5
    assert work.names_in(__file__, range(in_loop, in_loop + 1))
    in_function = Counting.train.__code__.co_firstlineno + 4
    assert work.names_in(__file__, range(in_function, in_function + 1))


def test_what_a_called_function_counts_before_its_condition_is_one_ahead_there():
    from cotenant.tracing.training.conditional_work import ConditionalWork

    work = ConditionalWork(SimpleNamespace(warn=print, steps=1, event_count=1))
    counting = Counting(work)
    found = []

    def train(self):
        found.append(work.extra_steps())
        self.step += 1
        if self.step % 8 == 0:
            self.model(torch.ones(1))

    for _ in range(20):
        train(counting)
        break
    assert found == [8]


class Scores(torch.nn.Module):
    """Computes with its parameters alone, as models of entities and relations do."""

    def __init__(self):
        super().__init__()
        self.entities = torch.nn.Parameter(torch.ones(3, 2))

    def forward(self, first, second):
        return (self.entities[first] * self.entities[second]).sum()

    def rename(self, name):
        self.name = name


def test_the_forward_of_a_model_that_calls_no_module_is_work():
    from cotenant.tracing.training.conditional_work import ConditionalWork

    model = Scores()
    work = ConditionalWork(SimpleNamespace(warn=print, steps=1, event_count=1))

    def evaluate(model):
        model.forward(0, 1)

    def train():
        for epoch in range(1, 20):
            work.save_pending()
            if not epoch % 5:
                evaluate(model)
            if not epoch % 5:
                model.rename("best")
            break

    train()
    first = train.__code__.co_firstlineno
    assert work.names_in(__file__, range(first + 4, first + 5))
    assert not work.names_in(__file__, range(first + 6, first + 7))
