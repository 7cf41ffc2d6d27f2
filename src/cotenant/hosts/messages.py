"""What a daemon and an agent say to each other: one JSON object a line, at most `MAX_LINE_BYTES` long.

The daemon orders (`do`): `launch`, `recover`, `stop`, `pause`, `resume`, `signal`. The agent sends (`say`): `hello`,
which must come first, then `sample`, `started`, `ended` and `answer`. Processes of jobs can reach an agent of their
user, so the daemon believes nothing that an agent says beyond what these functions let through.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, TypeGuard

from cotenant.core import codec
from cotenant.core.errors import BackendError
from cotenant.core.gpu import Gpu, GpuSample
from cotenant.core.ports import AttemptRef

VERSION = 1
MAX_LINE_BYTES = 4 * 2**20
"""A launch carries the environment of a job; the kernel takes 2 MiB of arguments and environment (`execve(2)`)."""
MAX_GPUS = 128
"""Of one host: 16 GPUs with 7 MIG instances each are 112."""
MAX_PROCESSES = 4096
MAX_NAME_CHARS = 128
MAX_NUMBER = 1e18
PID_BITS = 22
"""proc_sys_kernel(5): pid_max is at most 2**22."""


class MalformedMessage(BackendError):
    """An agent said something that is none of its messages."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostReading:
    """The GPUs of a host at one time.

    Attributes:
        clock_s: the host's clock when it was sent.
        gpus: the inventory.
        samples: by UUID; a GPU that could not be read is absent.
        owners: attempts of processes on the GPUs, by pid of that host.
    """

    clock_s: float
    gpus: tuple[Gpu, ...]
    samples: Mapping[str, GpuSample]
    owners: Mapping[int, AttemptRef]


def line_of(message: Mapping[str, Any]) -> bytes:
    """The line of a message.

    Raises:
        BackendError: it is too long.
    """
    line = codec.to_json(message).encode() + b"\n"
    if len(line) > MAX_LINE_BYTES:
        raise BackendError(f"a message of {len(line)} bytes is too long for an agent, which takes {MAX_LINE_BYTES}")
    return line


def parsed(line: bytes) -> dict[str, Any]:
    """The object in a line.

    Raises:
        MalformedMessage: there is none, or the line was cut at `MAX_LINE_BYTES`.
    """
    if not line.endswith(b"\n"):
        raise MalformedMessage(f"found a line of {len(line)} bytes without an end")
    try:
        value = json.loads(line, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise MalformedMessage(f"found `{line[:60]!r}`, wanted an object of JSON") from error
    if not isinstance(value, dict):
        raise MalformedMessage(f"found a {type(value).__name__}, wanted an object of JSON")
    return value


def node_of(message: Mapping[str, Any]) -> str:
    """The name of the node in `hello`, an agent's first message.

    Raises:
        MalformedMessage: it is none, or of another version.
    """
    if message.get("say") != "hello":
        raise MalformedMessage(f"found `{str(message.get('say'))[:40]}` first, wanted `hello`")
    if message.get("version") != VERSION:
        raise MalformedMessage(
            f"the agent speaks version {str(message.get('version'))[:10]}, this daemon {VERSION}",
            hint="install the same cotenant on all hosts",
        )
    node = message.get("node")
    if not isinstance(node, str) or not 0 < len(node) <= MAX_NAME_CHARS or not node.isprintable():
        raise MalformedMessage("`hello` names no node")
    return node


def reading_of(message: Mapping[str, Any], host: str) -> HostReading:
    """The content of `hello` and `sample`. GPUs get the host's name, whatever the agent calls it.

    Raises:
        MalformedMessage: a field is missing, too large, or of another type.
    """
    clock_s, listed, taken, owned = (message.get(name) for name in ("clock_s", "gpus", "samples", "owners"))
    if not is_number(clock_s):
        raise MalformedMessage("`clock_s` is no time")
    if not isinstance(listed, list) or not isinstance(taken, dict) or not isinstance(owned, dict):
        raise MalformedMessage("`gpus`, `samples` or `owners` is missing")
    if len(listed) > MAX_GPUS or len(owned) > MAX_PROCESSES:
        raise MalformedMessage(f"found {len(listed)} GPUs and {len(owned)} owners, which is too many")
    gpus = tuple(_gpu(value, host) for value in listed)
    uuids = {gpu.uuid for gpu in gpus}
    if len(uuids) < len(gpus) or not uuids.issuperset(taken):
        raise MalformedMessage("a GPU is listed twice, or a sample is of a GPU that is not listed")
    return HostReading(
        clock_s=clock_s,
        gpus=gpus,
        samples={uuid: _sample(value) for uuid, value in taken.items()},
        owners={_pid(pid): ref_of(value) for pid, value in owned.items()},
    )


def ref_of(value: object) -> AttemptRef:
    """An attempt from its `[job, attempt]`.

    Raises:
        MalformedMessage: it is none.
    """
    if isinstance(value, list) and len(value) == 2 and all(type(item) is int and 0 < item < 2**53 for item in value):
        return AttemptRef(job_id=value[0], attempt=value[1])
    raise MalformedMessage(f"found `{str(value)[:40]}`, wanted a job and its attempt")


def pair_of(ref: AttemptRef) -> list[int]:
    """An attempt as messages name it, which `ref_of` reads."""
    return [ref.job_id, ref.attempt]


def is_number(value: object) -> TypeGuard[float]:
    """Whether it is a number that a host can mean: finite, not negative, not huge."""
    return type(value) in (int, float) and 0 <= value <= MAX_NUMBER  # type: ignore[operator]


def _pid(text: str) -> int:
    if text.isascii() and text.isdigit() and len(text) <= 7 and 0 < int(text) <= 2**PID_BITS:
        return int(text)
    raise MalformedMessage(f"found `{text[:40]}`, wanted a pid")


def _gpu(value: object, host: str) -> Gpu:
    gpu: Gpu = _decoded(Gpu, value)
    names = (gpu.uuid, gpu.name, gpu.mig_parent or "", gpu.mig_profile or "")
    if not gpu.uuid or not all(len(name) <= MAX_NAME_CHARS and name.isprintable() and name.isascii() for name in names):
        raise MalformedMessage("the name of a GPU is empty, too long, or not printable")
    if not 0 <= gpu.index <= MAX_GPUS or not 0 < gpu.memory_total_bytes < 2**50:
        raise MalformedMessage(f"GPU `{gpu.uuid}` has index {gpu.index} and {gpu.memory_total_bytes} bytes")
    if gpu.available_until_s is not None and not is_number(gpu.available_until_s):
        raise MalformedMessage(f"GPU `{gpu.uuid}` has an end that is no time")
    return replace(gpu, server=host)


def _sample(value: object) -> GpuSample:
    sample: GpuSample = _decoded(GpuSample, value)
    held = [getattr(sample, field.name) for field in fields(sample)]
    held += [getattr(process, field.name) for process in sample.processes for field in fields(process)]
    if len(sample.processes) > MAX_PROCESSES or not all(
        item is None or isinstance(item, tuple) or is_number(item) for item in held
    ):
        raise MalformedMessage("a sample has a value out of range")
    if any(process.pid > 2**PID_BITS for process in sample.processes):
        raise MalformedMessage("a sample has a pid out of range")
    return sample


def _decoded(kind: type[Any], value: object) -> Any:
    try:
        return codec.decode(kind, value)
    except (codec.CodecError, RecursionError) as error:
        raise MalformedMessage(f"found no {kind.__name__}: {error}") from error


def _refuse_constant(name: str) -> float:
    raise ValueError(name)
