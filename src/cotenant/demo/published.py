"""Published measurements: the tables in `demo/data`, and larger tables given by path."""

from __future__ import annotations

import csv
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from cotenant.core.units import MiB

# Model and library of a published measurement, and the example that repeats it; the batch size is added.
_EXAMPLES: Mapping[tuple[str, str], tuple[str, ...]] = {
    ("bert-base", "transformers"): ("bert_mlm.py", "--size", "base"),
    ("bert-large", "transformers"): ("bert_mlm.py", "--size", "large"),
    ("efficientnet_b0", "timm"): ("cifar.py", "--model", "efficientnet_b0"),
    ("efficientnet_b0", "torchvision"): ("efficientnet_b0.py",),
    ("inception_v3", "torchvision"): ("inception_v3.py",),
    ("mobilenet_v2", "torchvision"): ("mobilenet_v2.py",),
    ("mobilenetv3_small_100", "timm"): ("cifar.py", "--model", "mobilenetv3_small_100"),
    ("resnet18", "timm"): ("cifar.py", "--model", "resnet18"),
    ("resnet34", "timm"): ("cifar.py", "--model", "resnet34"),
    ("resnet50", "torchvision"): ("resnet50.py",),
    ("vgg16", "torchvision"): ("vgg16.py",),
    ("xception", "timm"): ("xception.py",),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredScript:
    """A script of `examples/` with the arguments that repeat a published job.

    Attributes:
        measured_bytes: peak memory in use on the device, context included.
        faketensor_bytes: estimate of the publication's FakeTensor script, or None.
    """

    script: str
    args: tuple[str, ...]
    measured_bytes: int
    faketensor_bytes: int | None
    source: str

    @property
    def title(self) -> str:
        """Script and arguments, for a table."""
        return shlex.join([self.script.removesuffix(".py"), *self.args])


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedJob:
    """A submission of a published trace.

    Attributes:
        arrival_s: time since the first submission.
        workload: its name on the simulated server.
        *_mib: peak per GPU, measured and estimated; as text, since a `.rad` file repeats it.
        declared_mib: declared instead of the measured peak, to provoke an OOM; or None.
    """

    number: int
    arrival_s: float
    workload: str
    batch: int
    gpus: int
    measured_mib: str
    horus_mib: str
    faketensor_mib: str
    gpumemnet_mib: str
    declared_mib: str | None

    @property
    def reported_bytes(self) -> int:
        """The memory that the job declares."""
        return int(self.declared_mib or self.measured_mib) * MiB

    @property
    def measured_bytes(self) -> int:
        """The memory that the job needs."""
        return int(self.measured_mib) * MiB

    def rad_text(self, command: str) -> str:
        """A `.rad` job file that runs `command`; fields are identified by their line."""
        lines = (
            f"# {self.workload}, submission {self.number} of the trace",
            command,
            f"{self.workload}.model",
            self.workload,
            str(self.batch),
            "exclusive",
            str(self.gpus),
            self.declared_mib or self.measured_mib,
            self.horus_mib,
            self.faketensor_mib,
            self.gpumemnet_mib,
        )
        return "\n".join(lines) + "\n"


def demo_scripts() -> tuple[MeasuredScript, ...]:
    """Six jobs with published peaks on an A100-40GB."""
    return tuple(
        MeasuredScript(
            script=row["script"],
            args=tuple(row["args"].split()),
            measured_bytes=int(row["measured_mib"]) * MiB,
            faketensor_bytes=_mib(row["faketensor_mib"]),
            source=f"CARMA, workloads/ehsan-summary.csv, run {row['run']}",
        )
        for row in _rows(_shipped("demo_estimates.csv"))
    )


def measured_scripts(table: Path) -> tuple[MeasuredScript, ...]:
    """The jobs of `realworld_measured.csv` (run 2025-09, one GPU) that an example repeats.

    Source: GPUMemNet and CARMA; the data card beside the table says how each was measured. Jobs that were measured
    twice are there twice.
    """
    found = []
    for row in _rows(table.read_text("utf-8")):
        example = _EXAMPLES.get((row["model"].split(" ")[0], row["library"]))
        if row["run"] == "2025-09" and row["n_gpus"] == "1" and example is not None:
            found.append(
                MeasuredScript(
                    script=example[0],
                    args=(*example[1:], "--batch-size", row["batch"]),
                    measured_bytes=int(row["measured_mib"]) * MiB,
                    faketensor_bytes=_mib(row["faketensor_mib"]),
                    source=row["source"],
                )
            )
    return tuple(found)


def demo_trace() -> tuple[PublishedJob, ...]:
    """Twenty jobs of a published trace, in order of arrival."""
    return tuple(
        PublishedJob(
            number=int(row["seq"]),
            arrival_s=float(row["arrival_s"]),
            workload=row["workload"],
            batch=int(row["batch"]),
            gpus=int(row["gpus"]),
            measured_mib=row["measured_mib"],
            horus_mib=row["horus_mib"],
            faketensor_mib=row["faketensor_mib"],
            gpumemnet_mib=row["gpumemnet_mib"],
            declared_mib=row["declared_mib"] or None,
        )
        for row in _rows(_shipped("demo_trace.csv"))
    )


def _shipped(name: str) -> str:
    return (resources.files("cotenant.demo") / "data" / name).read_text("utf-8")


def _rows(text: str) -> Iterable[dict[str, str]]:
    return csv.DictReader(line for line in text.splitlines() if not line.startswith("#"))


def _mib(text: str) -> int | None:
    return round(float(text) * MiB) if text else None
