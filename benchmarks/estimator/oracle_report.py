"""Rows of `oracle.py`: one file for each job, and the result page that is made of them."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path

from benchmarks.estimator.oracle_jobs import LEFT_OUT, OracleJob
from cotenant.core.stats import quantile
from cotenant.core.units import format_bytes
from cotenant.osutil.atomic import replacing

NEAR, FAR = 0.005, 0.02
GENERATED = frozenset(("cnn", "encoder", "perceptron"))
KNOWN_CAUSES = {
    "forward, no module, input": "the estimate's last step has the last batch of an epoch, the null GPU's has not",
}
"""Causes of first differences, by a part of their text."""


@dataclass(frozen=True)
class Comparison:
    """One job, on both sides; sizes in bytes.

    Attributes:
        stack: versions of the libraries, such as `torch 2.13.0+cu130, cuDNN 9.20.0`.
        cpu_s: CPU time of both sides; of the null GPU's only if its history was not there before.
    """

    name: str
    kind: str
    problem: str = ""
    not_judged: str = ""
    null_reserved_bytes: int = 0
    reserved_bytes: int = 0
    null_allocated_bytes: int = 0
    allocated_bytes: int = 0
    null_allocations: int = 0
    equal_allocations: int = 0
    first_difference: str = ""
    commit: str = ""
    stack: str = ""
    cpu_s: float = 0.0

    @property
    def error(self) -> float:
        """Relative error of the reserved bytes; positive if the estimate is too high."""
        return (self.reserved_bytes - self.null_reserved_bytes) / max(1, self.null_reserved_bytes)


def source_digest(root: Path) -> str:
    """A name for the content of all files of this package, with which estimates are made."""
    digest = hashlib.sha256()
    for path in sorted((root / "src" / "cotenant").rglob("*")):
        if path.is_file() and "__pycache__" not in path.parts:
            digest.update(f"{path.relative_to(root)}\0".encode() + hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()[:16]


class Rows:
    """Rows on disk, a file for each job. The folder is named after the sources: rows of others are not read."""

    def __init__(self, folder: Path, sources: str) -> None:
        self._folder = folder / "rows" / sources
        self._folder.mkdir(parents=True, exist_ok=True)

    def get(self, key: str) -> Comparison | None:
        """The row of a job, None if it was not judged."""
        path = self._path(key)
        return _row(path) if path.exists() else None

    def add(self, key: str, row: Comparison) -> None:
        with replacing(self._path(key)) as file:
            file.write(json.dumps(asdict(row)).encode())

    def all(self) -> dict[str, list[Comparison]]:
        """Rows by the stack that they were judged with; those of a job that neither side could start are left out."""
        found: dict[str, list[Comparison]] = {}
        for row in map(_row, sorted(self._folder.glob("*.json"))):
            if row.stack:
                found.setdefault(row.stack, []).append(row)
        return found

    def _path(self, key: str) -> Path:
        return self._folder / f"{key}.json"


def _row(path: Path) -> Comparison:
    known = {field.name for field in fields(Comparison)}
    return Comparison(**{name: value for name, value in json.loads(path.read_text()).items() if name in known})


def page_lines(rows: Mapping[str, Sequence[Comparison]], jobs: Sequence[OracleJob], *, main_stack: str) -> list[str]:
    """The result page without its head: first the table of `main_stack`, then a section for each other stack."""
    lines = []
    for stack in sorted(rows, key=lambda name: (name != main_stack, name)):
        if stack != main_stack:
            lines += ["", f"## {stack}"]
        found = in_order(rows[stack], jobs)
        lines += ["", *about_lines(found, jobs), "", *summary_lines(found), "", *table_lines(found)]
    return lines[1:]


def in_order(rows: Sequence[Comparison], jobs: Sequence[OracleJob]) -> list[Comparison]:
    """The rows of known jobs, in the order of the jobs."""
    by_name = {row.name: row for row in rows}
    return [replace(by_name[job.name], not_judged=job.not_judged) for job in jobs if job.name in by_name]


def about_lines(rows: Sequence[Comparison], jobs: Sequence[OracleJob]) -> Iterator[str]:
    """How many jobs of the list were judged, where, and with what CPU time."""
    judged = counted(rows)
    commits = Counter(row.commit for row in judged)
    made = ", ".join(f"{number} at {name}" for name, number in commits.most_common())
    yield f"{len(judged)} different jobs were judged ({made}), of {len(jobs)} in the list."
    small = sum(row.kind in GENERATED for row in judged)
    commands = {row.name.rpartition(" on ")[0] for row in judged}
    yield f"{small} of them are small jobs of the generators; {len(commands)} differ by more than their GPU."
    if rows:
        times_s = [row.cpu_s for row in rows]
        usual = f"{quantile(times_s, 0.5):.1f} s in the median, at most {max(times_s):.0f} s"
        yield f"CPU time: {sum(times_s):,.0f} s for {len(rows)} jobs, {usual}."
    yield "Examples that are not in the list: " + "; ".join(f"`{name}` ({why})" for name, why in LEFT_OUT.items()) + "."


def counted(rows: Sequence[Comparison]) -> list[Comparison]:
    """Rows that both sides could run and that the null GPU can judge."""
    return [row for row in rows if not row.problem and not row.not_judged]


def table_lines(rows: Sequence[Comparison]) -> Iterator[str]:
    yield "| job | null | estimate | error | allocations | equal | first difference (bytes) |"
    yield "| --- | ---: | ---: | ---: | ---: | ---: | --- |"
    for row in rows:
        if row.problem:
            yield f"| `{row.name}` | - | - | - | - | - | {row.problem} |"
            continue
        sizes = f"{format_bytes(row.null_reserved_bytes)} | {format_bytes(row.reserved_bytes)} | {row.error:+.2%}"
        counts = f"{row.null_allocations:,} | {row.equal_allocations / max(1, row.null_allocations):.1%}"
        yield f"| `{row.name}` | {sizes} | {counts} | {cause_of(row)} |"


def cause_of(row: Comparison) -> str:
    """Why a row differs: a known cause, or the first difference."""
    if row.not_judged:
        return f"not judged: {row.not_judged}"
    return known_cause(row) or row.first_difference


def known_cause(row: Comparison) -> str:
    """The cause that the first difference shows, empty if it is none of `KNOWN_CAUSES`."""
    return next((cause for place, cause in KNOWN_CAUSES.items() if place in row.first_difference), "")


def summary_lines(rows: Sequence[Comparison]) -> Iterator[str]:
    """Counts for each kind of job; rows that the null GPU cannot judge are left out, and counted."""
    judged = counted(rows)
    yield "| kind | jobs | equal reserved bytes | within 0.5 % | above 2 % | equal allocations |"
    yield "| --- | ---: | ---: | ---: | ---: | ---: |"
    for kind in (*sorted({row.kind for row in judged}), "all"):
        of_kind = [row for row in judged if kind in (row.kind, "all")]
        equal = sum(row.null_reserved_bytes == row.reserved_bytes for row in of_kind)
        near, far = sum(abs(row.error) <= NEAR for row in of_kind), sum(abs(row.error) > FAR for row in of_kind)
        alike = sum(row.equal_allocations for row in of_kind) / max(1, sum(row.null_allocations for row in of_kind))
        yield f"| {kind} | {len(of_kind)} | {equal} | {near} | {far} | {alike:.2%} |"
    yield ""
    problems, others = sum(bool(row.problem) for row in rows), sum(bool(row.not_judged) for row in rows)
    causes = Counter(known_cause(row) or "others" for row in judged if row.null_reserved_bytes != row.reserved_bytes)
    if causes:
        listed = ", ".join(f"{number} ({cause})" for cause, number in causes.most_common())
        yield f"Jobs whose reserved bytes differ, by the cause of their first difference: {listed}."
    yield f"Not counted: {problems} jobs that either side could not run, {others} that the null GPU cannot judge."
