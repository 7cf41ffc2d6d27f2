"""Runs tests that train in a process of their own."""

from __future__ import annotations

import functools
import multiprocessing
import sys
import traceback
from collections.abc import Callable


def apart(test: Callable[..., None]) -> Callable[..., None]:
    """Run the test in a forked process: once autograd has run in a process, its forks cannot trace functions."""

    @functools.wraps(test)
    def run(**given: object) -> None:
        context = multiprocessing.get_context("fork")
        answers = context.SimpleQueue()

        def body() -> None:
            torch = sys.modules.get("torch")
            if torch is not None:
                torch.set_num_threads(1)  # a fork has none of the threads that libgomp would wait for
            try:
                test(**given)
            except BaseException:
                answers.put(traceback.format_exc())
                raise
            answers.put("")

        process = context.Process(target=body)
        process.start()
        process.join()
        assert not answers.empty(), f"the process ended with {process.exitcode}"
        failed = answers.get()
        assert not failed, failed

    return run
