"""`cotenant advise`: which jobs should share a GPU, and how, by the guidelines of collocation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from cotenant.cli.common import Connection, connection_options
from cotenant.cli.options import argument, cli_command, flag, json_option, option, option_group
from cotenant.cli.output import Column, emit_json, note, print_table
from cotenant.cli.parameter_types import PATH, integer
from cotenant.core.errors import UsageError
from cotenant.core.units import format_bytes

if TYPE_CHECKING:
    from cotenant.scheduling.sharing_guidelines import SoloUse
    from cotenant.study.advise import MeasuredAdvice

DEFAULT_GPU = "A100-40GB"

COLUMNS = (
    Column(key="jobs", title="JOBS"),
    Column(key="verdict", title="VERDICT"),
    Column(key="sharing", title="HOW"),
    Column(key="smact", title="SMACT", right=True),
    Column(key="memory", title="MEMORY", right=True),
    Column(key="measured", title="MEASURED"),
    Column(key="reasons", title="BECAUSE"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class AdviceOptions:
    """Which jobs, and on what."""

    jobs: tuple[str, ...] = argument(nargs=-1, required=False, metavar="[JOB]...", help="Names, or NAME=SMACT,GIB.")
    study: Path | None = option("--study", type=PATH, metavar="DIR", help="Results of `cotenant study collocate`.")
    gpu: str | None = option(
        "--gpu", metavar="GPU", help=f"GPU to share; by default that of the study or daemon, else {DEFAULT_GPU}."
    )
    isolation: bool = flag("--isolation", help="No job may slow down or crash another.")
    no_mps: bool = flag("--no-mps", help="MPS is not allowed here.")
    first: int = option("-n", "--first", type=integer(minimum=1), metavar="N", help="Only the first N.", default=20)


@cli_command()
@option_group("chosen", AdviceOptions)
@json_option
@connection_options
def command(chosen: AdviceOptions, *, json: bool, connection: Connection) -> None:
    """Advise which jobs should share a GPU, and how.

    The guidelines are those of the thesis (section 4.3.5): memory adds up and must fit; up to an SM activity of 80 % in
    all, sharing pays; MPS is fastest, MIG isolates. `cotenant study collocate` says how often each held on your GPU.

    JOBs are advised on as one group. Without any, all pairs of the jobs of a study, or of the workloads of the daemon's
    history, are listed, best first. Where a study measured the same jobs together, the gain is shown.

      cotenant advise bert=0.35,6 resnet50_imagenet_bs64
      cotenant advise --study groups
      cotenant advise
    """
    from cotenant.study.advise import advise_on, all_pairs, gpu_memory_of, parse_job, solo_uses
    from cotenant.study.collocation_report import results_of

    rows = _rows(chosen.study)
    known = solo_uses(rows)
    gpu_memory_bytes = gpu_memory_of(rows)
    if chosen.jobs:
        groups = [tuple(parse_job(text, known) for text in chosen.jobs)]
    else:
        jobs = list(known.values())
        if chosen.study is None:
            jobs, gpu_memory_bytes = _of_history(connection)
        groups = all_pairs(jobs)
    if chosen.gpu is not None or gpu_memory_bytes is None:
        gpu_memory_bytes = _memory_of(chosen.gpu or DEFAULT_GPU)
    found = advise_on(
        groups,
        gpu_memory_bytes,
        results_of(rows),
        needs_isolation=chosen.isolation,
        has_mps=not chosen.no_mps,
    )
    _print(found, chosen.first, json=json)


def _rows(folder: Path | None) -> list[Mapping[str, str]]:
    from cotenant.measurement.result_table import read_rows
    from cotenant.study.collocation_report import completed_rows

    if folder is None:
        return []
    path = folder / "collocation.csv"
    if not path.exists():
        raise UsageError(f"no study in `{folder}`", hint="wanted `collocation.csv`, of `cotenant study collocate`")
    return completed_rows(read_rows(path))


def _of_history(connection: Connection) -> tuple[list[SoloUse], int | None]:
    """Workloads of the daemon's history whose activity is known, and the memory of its smallest GPU."""
    from cotenant.scheduling.sharing_guidelines import SoloUse

    client = connection.client()
    workloads = client.usage("workload")
    jobs = [
        SoloUse(name=found["workload"], smact=found["smact"], memory_bytes=found["need_bytes"])
        for found in workloads
        if found["smact"] is not None or found["need_bytes"] is not None
    ]
    sizes = [gpu["memory_total_bytes"] for gpu in client.gpus()]
    return jobs, min(sizes, default=None)


def _memory_of(gpu: str) -> int:
    from cotenant.gpu_specs import gpu_spec

    return gpu_spec(gpu).memory_total_bytes


def _print(found: Sequence[MeasuredAdvice], first: int, *, json: bool) -> None:
    if json:
        emit_json({"advice": [{**asdict(one.advice), "gains": dict(one.gains), "best": one.best} for one in found]})
        return
    rows = [
        {
            "jobs": " + ".join(one.advice.jobs),
            "verdict": one.advice.verdict,
            "sharing": one.advice.sharing or "-",
            "smact": "?" if one.advice.smact_sum is None else f"{one.advice.smact_sum:.0%}",
            "memory": "?" if one.advice.memory_sum_bytes is None else format_bytes(one.advice.memory_sum_bytes),
            "measured": ", ".join(f"{way} {gain:.2f}" for way, gain in one.gains.items()) or "-",
            "reasons": "; ".join(one.advice.reasons),
        }
        for one in found[:first]
    ]
    print_table(rows, COLUMNS)
    if len(found) > first:
        note(f"{len(found) - first} more; list them with `-n {len(found)}`")
