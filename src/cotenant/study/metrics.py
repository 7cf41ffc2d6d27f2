"""What each GPU metric says of a kernel: `cotenant study metrics`.

Source: thesis, section 3.3.2 and figure 3.1; PMDLT (EuroMLSys 2023). A kernel runs with a number of blocks and threads
for some seconds while every source of readings is sampled: NVML's utilization (what nvidia-smi prints), NVML GPM, and
DCGM.
"""

from __future__ import annotations

import json
import math
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol

from cotenant.core import stats
from cotenant.core.errors import BackendError, CotenantError
from cotenant.core.gpu import Gpu, GpuSample
from cotenant.core.ports import GpuBackend
from cotenant.measurement.campaign import open_table, utc_now
from cotenant.study.tools import run_environment

if TYPE_CHECKING:
    from cotenant.gpus.dcgm import DcgmReader

BLOCKS = (1, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072)
THREADS = (1, 8, 32, 128, 256, 512, 1024)
"""The launch shapes of figure 3.1."""
KERNELS = ("square", "stream", "fp32", "tensor")

METRICS = ("utilization", "gract", "smact", "smocc", "tensor", "fp32", "drama", "power_w", "sm_clock_mhz")
COLUMNS: Mapping[str, str] = {
    "kernel": "square, stream, fp32 or tensor",
    "blocks": "blocks of a launch",
    "threads": "threads of a block",
    "duty": "share of the time in which kernels were launched",
    "source": "nvml, dcgm or simulated",
    "outcome": "ok or failed",
    "message": "why it failed",
    **dict.fromkeys(METRICS, "mean over the steady part; empty if the source has no such value"),
    "samples": "readings in the steady part",
    "period_s": "median time between changes of a value; empty if none changed",
    "lag_s": "from the first launch to the first reading above half of the steady value",
    "launches": "launches of the kernel",
    "gpu": "name of the GPU; `simulated` before that of a simulated one",
    "at": "when it ended, UTC",
}
READ_INTERVAL_S = 0.05
EDGE_S = 1.0
"""The first and last second of a load are not steady: sources average over up to a second."""
LOAD_TIMEOUT_S = 120.0


class Shape(NamedTuple):
    """One point of the sweep."""

    kernel: str
    blocks: int
    threads: int
    duty: float


class MetricSource(Protocol):
    """Something that reads one GPU."""

    @property
    def name(self) -> str:
        """Its name in the rows."""
        ...

    def read(self) -> GpuSample | None:
        """A reading now; None if there is none."""
        ...


@dataclass(frozen=True, slots=True)
class BackendSource:
    """A GPU backend as a source."""

    name: str
    backend: GpuBackend
    gpu: Gpu

    def read(self) -> GpuSample | None:
        """The newest sample of the GPU."""
        return self.backend.sample(time.time()).get(self.gpu.uuid)


@dataclass(frozen=True, slots=True)
class DcgmSource:
    """DCGM alone, without the values that NVML has beside it."""

    name: str
    reader: DcgmReader
    uuid: str

    def read(self) -> GpuSample | None:
        """The newest row of `dcgmi dmon`."""
        found = self.reader.read().get(self.uuid)
        return None if found is None else GpuSample(at_s=time.time(), **asdict(found))


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsStudy:
    """What to run.

    Attributes:
        load: command of a load without its options: of the job's Python, or of a simulated one.
        env: added to the environment of the load.
        gpu: as rows name it.
    """

    out: Path
    load: tuple[str, ...]
    env: Mapping[str, str]
    sources: tuple[MetricSource, ...]
    shapes: tuple[Shape, ...]
    seconds: float
    gpu: str


def sweep(
    kernels: Iterable[str], blocks: Iterable[int], threads: Iterable[int], duties: Iterable[float]
) -> list[Shape]:
    """All points, kernel by kernel; `tensor` chooses its own threads and is swept over blocks only."""
    found = []
    block_list, thread_list, duty_list = list(blocks), list(threads), list(duties)
    for kernel in kernels:
        for duty in duty_list:
            for block in block_list:
                found += [Shape(kernel, block, thread, duty) for thread in ([0] if kernel == "tensor" else thread_list)]
    return found


def run_metrics(study: MetricsStudy, *, resume: bool, say: Callable[[str], None]) -> Iterator[dict[str, object]]:
    """Rows of `DIR/metrics.csv`: one for each shape and source; existing ones are skipped with `resume`.

    Raises:
        UsageError: the folder has results and `resume` is False.
    """
    with open_table(study.out / "metrics.csv", COLUMNS, resume=resume, same={"gpu": study.gpu}) as table:
        done = {(row["kernel"], row["blocks"], row["threads"], row["duty"]) for row in table.rows()}
        waiting = [shape for shape in study.shapes if tuple(map(str, shape)) not in done]
        if waiting:
            say(f"{len(waiting)} shapes, about {len(waiting) * (study.seconds + 3) / 60:.0f} minutes")
        for shape in waiting:
            for row in _measure(shape, study):
                table.add(row)
                yield row


def _measure(shape: Shape, study: MetricsStudy) -> list[dict[str, object]]:
    options = zip(("--kernel", "--blocks", "--threads", "--duty"), map(str, shape), strict=True)
    command = [*study.load, *(word for pair in options for word in pair), "--seconds", str(study.seconds)]
    readings: list[list[GpuSample]] = [[] for _ in study.sources]
    outcome, message = "ok", ""
    load: dict[str, float] | None = None
    with ExitStack() as stack:
        stopped = threading.Event()
        for source, found in zip(study.sources, readings, strict=True):
            thread = threading.Thread(target=_read_until, args=(source, found, stopped), daemon=True)
            thread.start()
            stack.callback(thread.join)
        stack.callback(stopped.set)
        try:
            done = subprocess.run(
                command, env={**run_environment(), **study.env}, stdin=subprocess.DEVNULL, capture_output=True,
                text=True, errors="replace", timeout=study.seconds + LOAD_TIMEOUT_S, check=False,
            )  # fmt: skip
            load = _load_times(done.stdout)
            if load is None or done.returncode:
                lines = (done.stderr.strip() or done.stdout.strip() or "no output").splitlines()
                outcome, message = "failed", f"exit code {done.returncode}: {lines[-1][:200]}"
        except subprocess.TimeoutExpired:
            outcome, message = "failed", "the load did not end"
    rows = []
    for source, found in zip(study.sources, readings, strict=True):
        row: dict[str, object] = {**shape._asdict(), "source": source.name, "outcome": outcome, "message": message}
        if outcome == "ok" and load is not None:
            row |= summary(found, load["began_s"], load["ended_s"])
            row["launches"] = int(load["launches"])
        rows.append({name: {**row, "gpu": study.gpu, "at": utc_now()}.get(name) for name in COLUMNS})
    return rows


def _read_until(source: MetricSource, found: list[GpuSample], stopped: threading.Event) -> None:
    while not stopped.wait(READ_INTERVAL_S):
        try:
            sample = source.read()
        except (CotenantError, OSError):
            continue
        if sample is not None:
            found.append(sample)


def _load_times(text: str) -> dict[str, float] | None:
    """What a load printed last; None if that is no report."""
    lines = [line for line in text.splitlines() if line.strip()]
    try:
        report = json.loads(lines[-1])
        found = {name: float(report[name]) for name in ("began_s", "ended_s", "launches")}
    except (ValueError, TypeError, KeyError, IndexError):
        return None
    return found if all(map(math.isfinite, found.values())) and found["ended_s"] > found["began_s"] else None


def summary(readings: Sequence[GpuSample], began_s: float, ended_s: float) -> dict[str, object]:
    """The columns of a row that follow from readings and the times of the load."""
    edge_s = min(EDGE_S, (ended_s - began_s) / 4)
    steady = [sample for sample in readings if began_s + edge_s <= sample.at_s <= ended_s - edge_s]
    means = {name: stats.mean_of_known(getattr(sample, name) for sample in steady) for name in METRICS}
    leading = next((name for name in ("smact", "utilization") if means[name]), None)
    return {
        **{name: None if value is None else round(value, 4) for name, value in means.items()},
        "samples": len(steady),
        "period_s": _period_s(steady),
        "lag_s": None if leading is None else _lag_s(readings, leading, began_s, (means[leading] or 0.0) / 2),
    }


def _period_s(steady: Sequence[GpuSample]) -> float | None:
    """Median time between changes of any value: readings come more often than a source renews its values."""
    changes = [
        after.at_s
        for before, after in pairwise(steady)
        if any(getattr(before, name) != getattr(after, name) for name in METRICS)
    ]
    gaps = [after - before for before, after in pairwise(changes)]
    return round(stats.median(gaps), 3) if gaps else None


def _lag_s(readings: Sequence[GpuSample], name: str, began_s: float, half: float) -> float | None:
    above = (s.at_s for s in readings if s.at_s >= began_s and (getattr(s, name) or 0.0) >= half)
    first = next(above, None)
    return None if first is None else round(first - began_s, 3)


def nvml_sources() -> tuple[Gpu, tuple[MetricSource, ...]]:
    """The first GPU, and NVML and DCGM as sources; DCGM only where it runs.

    Raises:
        BackendError: NVML does not work here.
    """
    from cotenant.gpus.dcgm import DcgmReader
    from cotenant.gpus.nvml import NvmlBackend

    nvml = NvmlBackend()
    inventory = nvml.inventory()
    if not inventory:
        raise BackendError("NVML lists no GPU", hint="or try the study on a simulated one: `--simulate A100-40GB`")
    sources: list[MetricSource] = [BackendSource("nvml", nvml, inventory[0])]
    with suppress(BackendError):
        sources.append(DcgmSource("dcgm", DcgmReader(), inventory[0].uuid))
    return inventory[0], tuple(sources)
