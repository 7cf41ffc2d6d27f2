"""Time series of GPU samples: the last 15 minutes by the second, the last 3 days by the minute. Bounded in memory.

With a file, minutes survive a restart: one line is appended for each GPU and minute, and the file is rewritten when
half of its lines are too old. A file that cannot be written or read costs the past minutes, nothing else.
"""

from __future__ import annotations

import json
import logging
import math
import os
import threading
from array import array
from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from cotenant.core.gpu import GpuSample
from cotenant.osutil import atomic

logger = logging.getLogger(__name__)

FINE_S = 1.0
MAX_FINE_POINTS = 900
MINUTE_S = 60.0
MAX_MINUTE_POINTS = 3 * 24 * 60

MEASURES = (
    "used_bytes", "smact", "smocc", "drama", "utilization", "power_w", "gract", "tensor", "fp32", "pcie_tx_bytes_s",
    "pcie_rx_bytes_s",
)  # fmt: skip


class TimeSeriesPoint(NamedTuple):
    """An interval of one GPU: its begin, its length, and means over its samples; None where nothing was read.

    Attributes:
        max_bytes: most memory in use in any sample.
        energy_j: energy used in the interval, by the GPU's counter; None without one.
    """

    at_s: float
    seconds: float
    used_bytes: float | None
    smact: float | None
    smocc: float | None
    drama: float | None
    utilization: float | None
    power_w: float | None
    max_bytes: float | None
    energy_j: float | None
    gract: float | None = None
    tensor: float | None = None
    fp32: float | None = None
    pcie_tx_bytes_s: float | None = None
    pcie_rx_bytes_s: float | None = None


WIDTH = len(TimeSeriesPoint._fields)
FIRST_WIDTH = TimeSeriesPoint._fields.index("gract")
"""Lines of the first version have only the fields before `gract`."""


class _RingBuffer:
    """The newest `capacity` points, as rows of floats; NaN stands for None."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._rows = array("d")
        self._next = 0

    def add(self, point: TimeSeriesPoint) -> None:
        row = array("d", [math.nan if value is None else value for value in point])
        if len(self._rows) < self._capacity * WIDTH:
            self._rows.extend(row)
        else:
            self._rows[self._next * WIDTH : (self._next + 1) * WIDTH] = row
        self._next = (self._next + 1) % self._capacity

    def since(self, at_s: float) -> list[TimeSeriesPoint]:
        """Points that end after `at_s`, oldest first."""
        count = len(self._rows) // WIDTH
        begin = self._next if count == self._capacity else 0
        found = []
        for index in range(count):
            start = (begin + index) % count * WIDTH
            row = self._rows[start : start + WIDTH]
            if row[0] + row[1] > at_s:
                values = [None if math.isnan(value) else value for value in row]
                found.append(TimeSeriesPoint(*values))  # type: ignore[arg-type]
        return found


@dataclass(slots=True)
class _Accumulator:
    """Sums over an interval that has not ended."""

    at_s: float
    sums: dict[str, float]
    counts: dict[str, int]
    max_bytes: float | None = None
    energy_j: float | None = None

    @classmethod
    def from_start(cls, at_s: float) -> _Accumulator:
        return cls(at_s, dict.fromkeys(MEASURES, 0.0), dict.fromkeys(MEASURES, 0))

    def add(self, values: Mapping[str, float | None], spent_j: float | None) -> None:
        for name, value in values.items():
            if value is not None:
                self.sums[name] += value
                self.counts[name] += 1
        used = values["used_bytes"]
        if used is not None:
            self.max_bytes = max(used, self.max_bytes or 0.0)
        if spent_j is not None:
            self.energy_j = (self.energy_j or 0.0) + spent_j

    def point(self, seconds: float) -> TimeSeriesPoint:
        means = {name: self.sums[name] / count if count else None for name, count in self.counts.items()}
        return TimeSeriesPoint(self.at_s, seconds, **means, max_bytes=self.max_bytes, energy_j=self.energy_j)


class _GpuTrack:
    """The series of one GPU."""

    def __init__(self, fine_points: int, minute_points: int) -> None:
        self.fine = _RingBuffer(fine_points)
        self.minutes = _RingBuffer(minute_points)
        self.second: _Accumulator | None = None
        self.minute: _Accumulator | None = None
        self.last_s = -math.inf
        self.energy_j: float | None = None


class GpuTimeSeries:
    """The series of all GPUs. Samples are added from one thread; any thread may read.

    `file`: where minutes are saved, or None.
    """

    def __init__(
        self, file: Path | None = None, *, fine_points: int = MAX_FINE_POINTS, minute_points: int = MAX_MINUTE_POINTS
    ) -> None:
        self._file = file
        self._fine_points = fine_points
        self._minute_points = minute_points
        self._tracks: dict[str, _GpuTrack] = {}
        self._lock = threading.Lock()
        self._lines = 0
        self._failing = False
        if file is not None:
            self._load(file)

    def add(self, samples: Mapping[str, GpuSample]) -> None:
        """Add samples of some GPUs. A sample older than the last one of its GPU is ignored."""
        ended: list[tuple[str, TimeSeriesPoint]] = []
        with self._lock:
            for uuid, sample in samples.items():
                track = self._tracks.setdefault(uuid, _GpuTrack(self._fine_points, self._minute_points))
                over = _take(track, sample)
                if over is not None:
                    ended.append((uuid, over))
        if ended and self._file is not None:
            self._append(self._file, ended)

    def since(
        self, at_s: float, now_s: float, uuids: AbstractSet[str] | None = None
    ) -> dict[str, list[TimeSeriesPoint]]:
        """Points from `at_s` on by GPU, oldest first: seconds if they reach back that far, else minutes.

        The current minute is not included. `uuids`: only these GPUs.
        """
        fine = now_s - at_s <= self._fine_points * FINE_S
        with self._lock:
            return {
                uuid: (track.fine if fine else track.minutes).since(at_s)
                for uuid, track in self._tracks.items()
                if uuids is None or uuid in uuids
            }

    # -- the file

    def _append(self, file: Path, ended: list[tuple[str, TimeSeriesPoint]]) -> None:
        try:
            if self._lines >= 2 * self._minute_points * len(self._tracks):
                self._rewrite(file)  # `ended` among them
                return
            with os.fdopen(os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600), "w") as out:
                out.writelines(_line(uuid, point) for uuid, point in ended)
            self._lines += len(ended)
            self._failing = False
        except OSError as error:
            if not self._failing:
                logger.warning("GPU samples are not saved", extra={"fields": {"why": str(error)}})
            self._failing = True

    def _rewrite(self, file: Path) -> None:
        points = [(uuid, point) for uuid, track in self._tracks.items() for point in track.minutes.since(-math.inf)]
        points.sort(key=lambda entry: entry[1].at_s)
        atomic.write_text(file, "".join(_line(uuid, point) for uuid, point in points))
        self._lines = len(points)

    def _load(self, file: Path) -> None:
        try:
            with file.open() as lines:
                for uuid, point in _read(lines):
                    self._lines += 1
                    track = self._tracks.setdefault(uuid, _GpuTrack(self._fine_points, self._minute_points))
                    track.minutes.add(point)
        except FileNotFoundError:
            return
        except (OSError, ValueError) as error:
            logger.warning("saved GPU samples cannot be read", extra={"fields": {"why": str(error)}})


def _take(track: _GpuTrack, sample: GpuSample) -> TimeSeriesPoint | None:
    """Add a sample to a track; returns the minute that it ends, or None."""
    if not track.last_s < sample.at_s < math.inf:
        return None
    before_s = track.last_s if math.isfinite(track.last_s) else sample.at_s
    values = {name: _number(getattr(sample, name)) for name in MEASURES}
    energy_j = _number(sample.energy_j)
    spent_j = None
    if energy_j is not None and track.energy_j is not None and energy_j >= track.energy_j:
        spent_j = energy_j - track.energy_j
    track.last_s = sample.at_s
    track.energy_j = energy_j if energy_j is not None else track.energy_j
    if track.second is None:
        track.second = _Accumulator.from_start(before_s)
    track.second.add(values, spent_j)
    if sample.at_s - track.second.at_s >= 0.9 * FINE_S:
        track.fine.add(track.second.point(sample.at_s - track.second.at_s))
        track.second = None
    begins_s = sample.at_s // MINUTE_S * MINUTE_S
    over = None
    if track.minute is not None and track.minute.at_s != begins_s:
        over = track.minute.point(MINUTE_S)
        track.minutes.add(over)
        track.minute = None
    if track.minute is None:
        track.minute = _Accumulator.from_start(begins_s)
    track.minute.add(values, spent_j)
    return over


def _number(value: float | None) -> float | None:
    return value if value is not None and 0.0 <= value < math.inf else None


def _line(uuid: str, point: TimeSeriesPoint) -> str:
    return json.dumps([uuid, *point], allow_nan=False) + "\n"


def _read(lines: Iterator[str]) -> Iterator[tuple[str, TimeSeriesPoint]]:
    """The points in a file; other lines are skipped, such as a last one that a crash left unfinished."""
    for line in lines:
        try:
            uuid, *values = json.loads(line)
            numbers = [None if value is None else float(value) for value in values]
        except (ValueError, TypeError, OverflowError, RecursionError):
            continue
        complete = len(numbers) in (FIRST_WIDTH, WIDTH) and numbers[0] is not None and numbers[1] is not None
        complete = complete and all(number is None or math.isfinite(number) for number in numbers)
        if isinstance(uuid, str) and complete:
            yield uuid, TimeSeriesPoint(*numbers)  # type: ignore[arg-type]
