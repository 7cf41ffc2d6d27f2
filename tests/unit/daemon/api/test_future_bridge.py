"""Answers of another thread reach the event loop: values, errors and cancellations, many with one wake-up."""

from __future__ import annotations

import asyncio
from concurrent.futures import CancelledError, Future
from threading import Thread

import pytest

from cotenant.daemon.api.future_bridge import FutureBridge


def in_another_thread(act):
    thread = Thread(target=act)
    thread.start()
    thread.join()


def test_all_completed_answers_arrive_with_one_wake_up():
    async def run():
        answers, here = FutureBridge(), asyncio.get_running_loop()
        calls = []
        call_soon_threadsafe = here.call_soon_threadsafe
        here.call_soon_threadsafe = lambda act: calls.append(call_soon_threadsafe(act))
        settled = [Future() for _ in range(5)]
        waiting = [answers.of(future) for future in settled]
        in_another_thread(lambda: [future.set_result(i) for i, future in enumerate(settled)])
        first = await asyncio.gather(*waiting)
        late = Future()
        last = answers.of(late)
        in_another_thread(lambda: late.set_result(5))
        return [*first, await last], len(calls)

    assert asyncio.run(run()) == ([0, 1, 2, 3, 4, 5], 2)


def test_a_completed_answer_is_returned_at_once():
    async def run():
        settled = Future()
        settled.set_result(1)
        return await FutureBridge().of(settled)

    assert asyncio.run(run()) == 1


@pytest.mark.parametrize(
    ("settle", "error"),
    [
        pytest.param(lambda answer: answer.set_exception(KeyError("x")), KeyError, id="its error"),
        pytest.param(lambda answer: answer.cancel(), asyncio.CancelledError, id="cancelled"),
    ],
)
def test_errors_are_propagated(settle, error):
    async def run():
        answer = Future()
        waiting = FutureBridge().of(answer)
        in_another_thread(lambda: settle(answer))
        await waiting

    with pytest.raises((error, CancelledError)):
        asyncio.run(run())


def test_a_cancelled_waiter_leaves_the_others_alone():
    async def run():
        answers = FutureBridge()
        gone, stays = Future(), Future()
        given_up, waiting = answers.of(gone), answers.of(stays)
        given_up.cancel()
        in_another_thread(lambda: (gone.set_result(1), stays.set_result(2)))
        return await waiting, gone.result()

    assert asyncio.run(run()) == (2, 1)
