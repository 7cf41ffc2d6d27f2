"""`cotenant k8s`: manifests with the GPU memory that they need, and the webhook that reads it."""

from __future__ import annotations

import logging
import os
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from cotenant.cli.command_estimates import largest_estimate
from cotenant.cli.estimate.options import DEFAULT_GPU
from cotenant.cli.options import cli_argument, cli_group, cli_option, json_option
from cotenant.cli.output import emit_json, note
from cotenant.cli.parameter_types import PATH, Parsed, integer
from cotenant.core.errors import UsageError
from cotenant.core.units import MiB, format_bytes, parse_gpu_memory
from cotenant.kubernetes.manifest import ContainerCommand, fill_manifest
from cotenant.kubernetes.pods import Sharing

if TYPE_CHECKING:
    from cotenant.core.estimate import Estimate
    from cotenant.jobfiles.python_commands import PythonCommand

ESTIMATE_TIMEOUT_S = 120.0
MAX_MANIFEST_BYTES = 4 * 1024 * 1024

_sharing = cli_option(
    "--sharing",
    type=click.Choice(["hami", "kai", "whole"]),
    help="What shares GPUs in the cluster: HAMi (nvidia.com/gpumem), KAI (gpu-memory), or nothing.",
)


@cli_group(no_args_is_help=True)
def command() -> None:
    """Give pods the GPU memory that their scripts need. Experimental.

    $ cotenant k8s manifest job.yaml --sharing hami | kubectl apply -f -
    """


@command.command("manifest")
@cli_argument("file", type=PATH, metavar="FILE", help="A manifest with pods; `-` is stdin.")
@_sharing
@cli_option("--gpu", default=DEFAULT_GPU, metavar="NAME", help="GPU to estimate for.")
@cli_option(
    "--gpu-mem", type=Parsed("size", parse_gpu_memory), metavar="SIZE", help="Memory on each GPU; nothing is estimated."
)
@cli_option("--source", type=PATH, default=Path(), metavar="DIR", help="What is in the container's workingDir.")
@cli_option(
    "--oom-policy",
    is_flag=True,
    help="Jobs fail at once when GPU memory runs out, and start again after a lost node. The image needs cotenant.",
)
@json_option
def manifest(
    file: Path, *, sharing: Sharing | None, gpu: str, gpu_mem: int | None, source: Path, oom_policy: bool, json: bool
) -> None:
    """Print a manifest with the GPU memory that its containers need. All else in it stays, comments too.

    The Python command of each container that requests GPUs is estimated in this environment, with the files of
    --source. Without --sharing, an annotation says what the pod needs, for the cluster's webhook.

      cotenant k8s manifest job.yaml --sharing hami
      cotenant k8s manifest job.yaml --sharing kai --source src
    """
    needed: dict[str, int | None] = {}

    def bound_bytes(container: ContainerCommand) -> int | None:
        found = gpu_mem if gpu_mem is not None else _estimate(container, gpu, source.absolute())
        needed[container.name] = found
        return found

    filled, notes = fill_manifest(_text(file), bound_bytes, sharing, has_oom_policy=oom_policy)
    for text in notes:
        note(f"k8s: {text}")
    if json:
        containers = [
            {"name": name, "gpu_memory_mib": None if size is None else -(-size // MiB)} for name, size in needed.items()
        ]
        emit_json({"manifest": filled, "containers": containers})
    else:
        sys.stdout.write(filled)


def _text(file: Path) -> str:
    try:
        data = sys.stdin.buffer.read() if str(file) == "-" else file.read_bytes()
        if len(data) > MAX_MANIFEST_BYTES:
            raise UsageError(f"`{file}` has {len(data)} bytes, wanted at most {MAX_MANIFEST_BYTES}")
        return data.decode("utf-8")
    except OSError as error:
        raise UsageError(f"cannot read `{file}`: {(error.strerror or str(error)).lower()}") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"`{file}` is not UTF-8 text") from error


def _estimate(container: ContainerCommand, gpu: str, source: Path) -> int | None:
    """What a container needs on each GPU; None, with the reason printed, if that is unknown."""
    from cotenant.core.ports import EstimateRequest
    from cotenant.estimators.trace_cache import TraceCache, default_folder
    from cotenant.estimators.traced import TracedEstimator
    from cotenant.jobfiles.python_commands import find_python_commands

    env = {**os.environ, **container.env, "PATH": os.environ.get("PATH", os.defpath)}
    found = find_python_commands(container.text, env, container.arguments)
    if not found:
        note(
            f"k8s: container {container.name} has no Python command that could be found; --gpu-mem declares its memory"
        )
        return None
    folder = default_folder()
    estimator = TracedEstimator(cache=None if folder is None else TraceCache(folder))
    root = container.workdir.rstrip("/")

    def estimate(python: PythonCommand) -> Estimate:
        request = EstimateRequest(
            command=tuple(_local(word, root, source) for word in python.words),
            workdir=str(source / _local(python.folder, root, source)),
            env={**env, **python.env},
            gpu=gpu,
            timeout_s=ESTIMATE_TIMEOUT_S,
            gpus=container.gpus,
        )
        one = estimator.estimate(request)
        partial = ", a lower bound" if one.partial else ""
        note(f"k8s: `{shlex.join(python.words)}` needs {format_bytes(one.bound_bytes)} on {one.gpu}{partial}")
        return one

    largest = largest_estimate("k8s", container.text, found, estimate)
    return None if largest is None else largest.bound_bytes


def _local(word: str, root: str, source: Path) -> str:
    """A path of the container as one of this machine, if it is below its working folder."""
    return str(source / word[len(root) + 1 :]) if root and word.startswith(f"{root}/") else word


@command.command("webhook")
@_sharing
@cli_option("--cert", type=PATH, required=True, metavar="FILE", help="Certificate of the service, PEM.")
@cli_option("--key", type=PATH, required=True, metavar="FILE", help="Its key.")
@cli_option("--bind", default="0.0.0.0", metavar="ADDRESS", help="Address to listen on.")  # noqa: S104 (a pod's)
@cli_option(
    "--port", type=integer(minimum=0, maximum=65535), default=8443, metavar="PORT", help="Port to listen on; 0: any."
)
@json_option
def webhook(*, sharing: Sharing | None, cert: Path, key: Path, bind: str, port: int, json: bool) -> None:
    """Serve the admission webhook: pods with our annotation get what sharing in the cluster needs.

    cotenant k8s webhook --sharing hami --cert tls.crt --key tls.key
    """
    if sharing is None:
        raise UsageError("`--sharing` is missing", hint="write --sharing hami, kai or whole")
    for path in (cert, key):
        if not path.is_file():
            raise UsageError(f"no such file: `{path}`")
    from cotenant.kubernetes.admission import serve

    def announce(url: str) -> None:
        if json:
            emit_json({"url": url})
        else:
            print(f"serves {url}")
        sys.stdout.flush()

    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    serve(sharing, cert, key, bind=bind, port=port, on_start=announce)
