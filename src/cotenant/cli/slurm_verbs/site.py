"""`cotenant slurm`: for administrators of a Slurm."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

import click

from cotenant.cli.options import cli_argument, cli_group, cli_option, json_option
from cotenant.cli.output import emit_json
from cotenant.core.errors import BackendError, UsageError
from cotenant.gpu_specs import gpu_spec
from cotenant.slurm.node_job import FOLDER, node_job
from cotenant.slurm.site_files import GresTypeOf, NodeGroup, check_site, site_lines

CONF_DIR = Path("/etc/slurm")
FOLDER_HELP = "Folder on this node, where only root can write, for what runs beside jobs."


@cli_group(no_args_is_help=True)
def command() -> None:
    """Write and check the lines of a site's configuration that let jobs share GPUs by memory.

    $ cotenant slurm config n[1-4]=8xA100-80GB
    $ cotenant slurm check
    """


@command.command("config")
@cli_argument(
    "nodes", nargs=-1, required=True, metavar="NODES=NxGPU...", help="Nodes and the GPUs of each, `n[1-4]=8xA100-80GB`."
)
@cli_option(
    "--type",
    "type_of",
    type=click.Choice(["model", "gpu", "none"]),
    default="model",
    help="What the type of a GRES names: the model; one GPU, so that a job can be put on it (shard:g1:13); or nothing.",
)
@cli_option("--device", default="/dev/nvidia%d", metavar="PATH", help="File of a GPU, %d for its index.")
@json_option
def config(nodes: tuple[str, ...], *, type_of: GresTypeOf, device: str, json: bool) -> None:
    """Print lines for gres.conf and slurm.conf. A shard is 1 GiB of GPU memory.

    $ cotenant slurm config n[1-4]=8xA100-80GB n5=4xL4-24GB
    """
    lines = site_lines([_group(text, device) for text in nodes], type_of)
    if json:
        emit_json({"gres_conf": lines.gres_conf, "slurm_conf": lines.slurm_conf})
        return
    print("# gres.conf", *lines.gres_conf, "", "# slurm.conf: what is there already for these nodes stays", sep="\n")
    print(*lines.slurm_conf, sep="\n")


def _group(text: str, device: str) -> NodeGroup:
    names, equals, gpus = text.partition("=")
    number, times, model = gpus.partition("x")
    if not (names and equals and times and number.isdecimal() and 1 <= int(number) <= 64):
        raise UsageError(f"`{text}` does not describe nodes", hint="write e.g. `n[1-4]=8xA100-80GB`")
    spec = gpu_spec(model)
    return NodeGroup(
        names=names, model=spec.name, memory_bytes=spec.memory_total_bytes, gpus=int(number), device=device
    )


@command.command("check")
@cli_option("--slurm-conf", type=Path, metavar="FILE", help="By default $SLURM_CONF, or slurm.conf in /etc/slurm.")
@cli_option("--gres-conf", type=Path, metavar="FILE", help="By default gres.conf beside it.")
@json_option
def check(*, slurm_conf: Path | None, gres_conf: Path | None, json: bool) -> int:
    """Check a site's files: whether jobs can request shards, and get what they stand for. Nothing is changed.

    Exit code 1 if there is a problem; 0 otherwise, warnings included.

    $ cotenant slurm check --slurm-conf /etc/slurm/slurm.conf
    """
    path = slurm_conf or Path(os.environ.get("SLURM_CONF") or CONF_DIR / "slurm.conf")
    found = check_site(_text(path), _text(gres_conf or path.with_name("gres.conf")))
    if json:
        emit_json({"findings": [dataclasses.asdict(problem) for problem in found]})
    else:
        for problem in found:
            print(f"{problem.severity:<9} {problem.where}: {problem.text}")
        if not found:
            print(f"{path}: jobs can share GPUs by shards")
    return int(any(problem.severity == "problem" for problem in found))


@command.command("prolog")
@cli_option(
    "--mps",
    type=click.Choice(["requested", "always", "never"]),
    default="requested",
    help="Which jobs get MPS: those with the word `mps` in their comment, all, or none.",
)
@cli_option("--record/--no-record", default=True, help="Write GPU memory and energy into AdminComment while it runs.")
@cli_option("--folder", type=Path, default=FOLDER, metavar="DIR", help=FOLDER_HELP)
@cli_option("--simulate", type=Path, metavar="DIR", help="Folder of a simulated server in place of the driver's GPUs.")
@json_option
def prolog(*, mps: str, record: bool, folder: Path, simulate: Path | None, json: bool) -> None:
    """Prepare a node for a job. slurmd calls it as root, by the script `prolog.sh` in the package's share/slurm.

    A control daemon of MPS for the GPUs of the job runs as the job's user. `epilog` ends it.

    $ SLURM_JOB_ID=17 SLURM_JOB_UID=1000 SLURM_JOB_GPUS=0 cotenant slurm prolog --mps always
    """
    from cotenant.slurm import prolog as node

    job = node_job(os.environ, folder)
    os.umask(0o022)
    try:
        with_mps = mps == "always" or (mps == "requested" and job.wants_mps)
        started = node.begin(job, with_mps=with_mps, with_record=record, simulate=simulate)
    except OSError as error:
        raise BackendError(f"cannot write `{error.filename}`: {error.strerror}", hint="run it as root") from error
    if json:
        emit_json({"job_id": job.job_id, "mps": started.mps, "record": started.record})


@command.command("epilog")
@cli_option("--folder", type=Path, default=FOLDER, metavar="DIR", help=FOLDER_HELP)
@json_option
def epilog(*, folder: Path, json: bool) -> None:
    """End what `prolog` has started for a job. slurmd calls it as root, by the script `epilog.sh`.

    $ SLURM_JOB_ID=17 SLURM_JOB_UID=1000 cotenant slurm epilog
    """
    from cotenant.slurm import prolog as node

    job = node_job(os.environ, folder)
    node.end(job)
    if json:
        emit_json({"job_id": job.job_id})


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        why = (error.strerror or str(error)).lower()
        raise UsageError(f"cannot read `{path}`: {why}", hint="name it with --slurm-conf or --gres-conf") from error
