"""Labels configurations one at a time, each in its own process; can be resumed after any interruption."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from cotenant.core.units import format_duration
from cotenant.learn.data_collection.configs import Config, config_id
from cotenant.learn.data_collection.run_log import LabelRecord, RunLog, read_records
from cotenant.learn.datasets.dataset_row import Status


class Labeler(Protocol):
    """Measures what a configuration needs: by tracing, or by training it on a GPU."""

    def label(self, config: Config) -> LabelRecord:
        """The record of a run, failed or not."""
        ...

    def close(self) -> None:
        """Release its processes."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelingProgress:
    """Progress of a session.

    Attributes:
        done, total: runs of the folder, those of earlier sessions included.
        left_s: time left at the rate of this session.
    """

    run: LabelRecord
    done: int
    total: int
    elapsed_s: float
    left_s: float

    @property
    def line(self) -> str:
        """For people."""
        rate = f"{format_duration(self.elapsed_s)} so far, {format_duration(self.left_s)} left"
        return f"[{self.done}/{self.total}] {self.run.status:<7} {self.run.config_id}  ({rate})"


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelingSession:
    """The result of a session: runs by status, and the number of configurations left."""

    counts: dict[Status, int]
    left: int
    elapsed_s: float


def run_configs(
    configs: Sequence[Config],
    folder: Path,
    labeler: Labeler,
    *,
    resume: bool = False,
    retry: Collection[Status] = (),
    limit_s: float | None = None,
    on_run: Callable[[LabelingProgress], None] = lambda _: None,
    now_s: Callable[[], float] = time.monotonic,
) -> LabelingSession:
    """Label every configuration without a run in `folder`, in order, until all have one or `limit_s` has passed.

    `retry`: with `resume`, configurations whose newest run has such a status run again. `limit_s` does not interrupt a
    run. `on_run` is called when a run is on disk.

    Raises:
        UsageError: the folder has runs and `resume` is not set, or another process writes there.
    """
    with RunLog(folder, resume=resume) as log:
        newest = {run.config_id: run.status for run in read_records(log.path)}
        waiting = [config for config in configs if newest.get(config_id(config)) in (None, *retry)]
        done_before = len(configs) - len(waiting)
        began_s = now_s()
        counts: dict[Status, int] = {}
        for number, config in enumerate(waiting, start=1):
            if limit_s is not None and now_s() - began_s >= limit_s:
                break
            run = labeler.label(config)
            log.add(run)
            counts[run.status] = counts.get(run.status, 0) + 1
            elapsed_s = now_s() - began_s
            on_run(
                LabelingProgress(
                    run=run,
                    done=done_before + number,
                    total=len(configs),
                    elapsed_s=elapsed_s,
                    left_s=elapsed_s / number * (len(waiting) - number),
                )
            )
        return LabelingSession(counts=counts, left=len(waiting) - sum(counts.values()), elapsed_s=now_s() - began_s)
