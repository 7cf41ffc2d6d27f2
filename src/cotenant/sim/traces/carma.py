"""The shipped CARMA traces, and CARMA's tables and scripts, whose jobs are the same measured workloads.

A CARMA trace is a shell script of `sleep` and `submit` lines over `.rad` job files. Run times and activity of its jobs
come from the measured workloads in `sim/data`.
"""

from __future__ import annotations

import csv
import functools
import math
import random
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from cotenant.core.errors import JobFileError, UnknownName, UsageError
from cotenant.core.estimate import SmactInterval
from cotenant.core.units import MiB
from cotenant.jobfiles.rad import parse_rad
from cotenant.sim.trace import JobProfile, Trace, TraceJob
from cotenant.sim.traces.formats import TraceFormat
from cotenant.sim.traces.rows import Collected, columns_of, read_text, rows, stem
from cotenant.sim.workloads import DATA_PATH, workloads

SOURCE = "sim/data/traces_carma.csv"
TURING = "aegis-saturn-60"

# The arrivals of `aegis-philly-60` are not published, only the last one and the median and P95 of their gaps.
PHILLY_SPAN_S = 9404.0
PHILLY_GAP_MEDIAN_S, PHILLY_GAP_P95_S = 8.0, 600.0

_SLEEP = re.compile(r"\s*sleep\s+(\d+(?:\.\d+)?)\s*([smh]?)\s*(?:#.*)?")
_SECONDS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0}
_RAD = re.compile(r"([^\s'\"=]+)\.rad\b")


class MeasuredWorkload(NamedTuple):
    """A measured workload: its profile, number of GPUs, and run time alone."""

    profile: JobProfile
    gpus: int
    solo_s: float

    def job(self, submit_s: float, *, user: str = "") -> TraceJob:
        """A job that runs this workload."""
        return TraceJob(submit_s=submit_s, duration_s=self.solo_s, gpus=self.gpus, profile=self.profile, user=user)


@functools.cache
def measured_a100() -> Mapping[str, MeasuredWorkload]:
    """The workloads measured on an A100-40GB, by name, with the estimates of their memory."""
    reported_bytes, reported_smact = _reported_bytes(), _reported_smact()
    return {
        name: MeasuredWorkload(
            JobProfile(
                workload=name,
                first_peak_bytes=workload.first_peak_bytes,
                peak_bytes=workload.peak_bytes,
                smact=workload.smact,
                smocc=workload.smocc,
                drama=workload.drama,
                utilization=workload.utilization,
                reported_bytes=reported_bytes.get(name, {}),
                reported_smact=reported_smact.get(name),
            ),
            workload.gpus,
            workload.solo_s,
        )
        for name, workload in workloads().items()
    }


@functools.cache
def measured_rtx2080ti() -> Mapping[str, MeasuredWorkload]:
    """The workloads measured on an RTX 2080 Ti, with their activity on an A100: none was published for this GPU."""
    a100 = measured_a100()
    found = {}
    for row in _table("workloads_rtx2080ti.csv"):
        same = a100[row["name"]].profile
        size = int(row["peak_mib"]) * MiB
        profile = JobProfile(
            workload=row["name"],
            first_peak_bytes=size,
            peak_bytes=size,
            smact=same.smact,
            smocc=same.smocc,
            drama=same.drama,
            utilization=same.utilization,
            measured=False,
            reported_bytes={"declared": size},
        )
        found[row["name"]] = MeasuredWorkload(profile, a100[row["name"]].gpus, float(row["solo_s"]))
    return found


def shipped() -> tuple[str, ...]:
    """Names of the traces in the package, in the order of their file."""
    return tuple(dict.fromkeys(row["trace"] for row in _table("traces_carma.csv")))


def read_shipped(name: str, *, seed: int = 0) -> Trace:
    """The trace of that name; `seed`: of its arrivals, if they are not published.

    Raises:
        UnknownName: there is none.
    """
    lines = [row for row in _table("traces_carma.csv") if row["trace"] == name]
    if not lines:
        raise UnknownName("trace", name, shipped())
    measured = measured_rtx2080ti() if name == TURING else measured_a100()
    notes: list[str] = []
    if name == TURING:
        notes.append("SM activity is that of the same workloads on an A100; none was published for this GPU")
    moments = [float(row["submit_s"]) for row in lines if row["submit_s"]]
    if not moments:
        moments = _drawn_moments(len(lines), seed)
        notes.append(f"arrivals are drawn (seed {seed}) from the published span, median and P95 of the gaps")
    jobs = [measured[row["workload"]].job(at_s) for row, at_s in zip(lines, moments, strict=True)]
    return Trace(name, jobs, source=SOURCE, notes=notes)


def _drawn_moments(count: int, seed: int) -> list[float]:
    drawn = random.Random(seed)  # noqa: S311 - no secret
    sigma = math.log(PHILLY_GAP_P95_S / PHILLY_GAP_MEDIAN_S) / 1.645
    gaps = [PHILLY_GAP_MEDIAN_S * math.exp(sigma * drawn.gauss(0.0, 1.0)) for _ in range(count - 1)]
    scale = PHILLY_SPAN_S / sum(gaps)
    moments = [0.0]
    for gap in gaps:
        moments.append(moments[-1] + gap * scale)
    return moments


def _reported_bytes() -> Mapping[str, Mapping[str, int | None]]:
    sources = ("declared", "horus", "faketensor", "gpumemnet", "cotenant")
    return {
        row["workload"]: {source: int(float(row[source]) * MiB) if row[source] else None for source in sources}
        for row in _table("reported_a100.csv")
    }


def _reported_smact() -> Mapping[str, SmactInterval]:
    return {
        row["workload"]: SmactInterval(*(float(row[name]) for name in ("smact_low", "smact", "smact_high")))
        for row in _table("reported_a100.csv")
        if row["smact"]
    }


@functools.cache
def _by_rad() -> Mapping[str, str]:
    return {row["rad"]: row["workload"] for row in _table("reported_a100.csv") if row["rad"]}


def _of_rad(name: str) -> MeasuredWorkload | None:
    """The workload that a CARMA `.rad` file of this name runs."""
    found = _by_rad().get(name)
    return None if found is None else measured_a100()[found]


def _table(name: str) -> Iterator[dict[str, str]]:
    with (DATA_PATH / name).open(newline="") as file:
        yield from csv.DictReader(line for line in file if not line.startswith("#"))


# Tables: one row a submission, with the name of the job file.

TABLE_EXAMPLE = """\
seq,submit_offset_s,workload,dataset,batch,epochs,n_gpus,rad
0,0,Xception,ImageNet,32,1,1,Xception
1,181,resnet18,cifar100,32,20,1,resnet18_cifar100_20e_1
2,181,unknown,none,1,1,1,no_such_job
"""


def _recognizes_table(_path: Path, first: str) -> bool:
    titles = columns_of(first)
    return "submit_offset_s" in titles and "rad" in titles


def read_table(path: Path) -> Trace:
    """Read the submissions whose job files were measured."""
    found = Collected()
    for row in rows(path, wanted=("submit_offset_s", "rad")):
        at_s, measured = row.number("submit_offset_s"), _of_rad(row.text("rad"))
        if at_s is None:
            raise row.error("no `submit_offset_s`")
        if measured is None:
            found.skip("a job file that was not measured")
        else:
            found.add(measured.job(at_s))
    return found.trace(stem(path), path, "run times alone are those of AEGIS")


# Scripts: `sleep N`, then a line that names a job file.

SCRIPT_EXAMPLE = """\
#!/bin/bash
python submit.py --task jobs/Xception.rad
sleep 181
python submit.py --task jobs/resnet18_cifar100_20e_1.rad &
sleep 2m  # a pause
python submit.py --task jobs/UNet.rad
echo done
"""


def _recognizes_script(path: Path, first: str) -> bool:
    return path.suffix == ".sh" or (first.startswith("#!") and ".rad" in first)


def read_script(path: Path) -> Trace:
    """Read the submissions of the script; each is submitted at the sum of the sleeps before it.

    A job file beside the script is read for its number of GPUs; without it, the name of the file says what it runs.

    Raises:
        JobFileError: a line submits a job that was not measured, or its file is damaged.
    """
    found = Collected()
    at_s = 0.0
    for number, line in enumerate(read_text(path).splitlines(), start=1):
        text = line.strip()
        if not text or text.startswith("#"):
            continue
        if pause := _SLEEP.fullmatch(text):
            at_s += float(pause[1]) * _SECONDS[pause[2]]
        elif submits := _RAD.search(text):
            found.add(_submitted(path, number, submits[1], at_s))
        else:
            found.skip("a line that neither sleeps nor names a `.rad` file")
    return found.trace(stem(path), path, "run times alone are those of AEGIS")


def _submitted(path: Path, number: int, job_file: str, at_s: float) -> TraceJob:
    name = Path(job_file).name
    measured = _of_rad(name)
    if measured is None:
        known = UnknownName("measured job file", name, _by_rad())
        raise JobFileError(str(path), number, f"`{name}.rad` was not measured", hint=known.hint)
    beside = path.parent / f"{job_file}.rad"
    if not beside.is_file():
        return measured.job(at_s)
    try:
        text = beside.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot read `{beside}`: {error}") from error
    parsed = parse_rad(text, str(beside))
    return TraceJob(submit_s=at_s, duration_s=measured.solo_s, gpus=parsed.gpus, profile=measured.profile)


CARMA_TABLE = TraceFormat(
    about="a table of CARMA submissions: submit_offset_s and the name of the .rad file",
    recognizes=_recognizes_table,
    read=read_table,
    example=TABLE_EXAMPLE,
    example_name="philly_trace.csv",
)
RAD_SCRIPT = TraceFormat(
    about="a shell script that sleeps and submits .rad files, as CARMA's traces are",
    recognizes=_recognizes_script,
    read=read_script,
    example=SCRIPT_EXAMPLE,
    example_name="trace.sh",
)
