"""Whether output shows a process that ended because GPU memory ran out.

Proof is structural: the exception that ends the last traceback, at the end of the output, is an
out-of-memory error of a framework. The same words elsewhere (a caught error, a help text, a path) are a hint.
Message formats seen: torch 1.13 to 2.11, jax, tensorflow, cupy, pycuda, numba, xgboost.

The output is hostile: a job may write anything, and root's runner reads it. So every pattern here takes time linear in
its text. A quantifier that has no fixed end is anchored at the start of a line, or nothing that it can match starts a
match of the same pattern again.
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple

TAIL_BYTES = 256 * 1024
MAX_LINE_CHARS = 8 * 1024  # of a line that is examined; torch's longest message names each process on the GPU

_HEADER = re.compile(r"^(?:Original )?Traceback \(most recent call last\):\s*$")
_ABORT = re.compile(r"^terminate called after throwing an instance of '(?P<type>[\w:]+)'")
_EXCEPTION = re.compile(r"^(?P<type>[A-Za-z_]\w*(?:\.\w+)*)(?:: (?P<text>.*))?$")
_RANK = re.compile(r"^(?:\[(?P<rank>(?:rank|default)\d+)\]:\s?)?(?P<line>.*)$")
_COLOR = re.compile(r"\x1b\[[0-9;]*m")

# Lines that interpreters, launchers and loggers print after the final exception of a program.
_NOISE = re.compile(
    r"""^(?: \s | [EWIF]\d{4}[ ] | \[[EWIF]\d{4}[ ] | \[W\d | frame[ ]\#\d+ | Exception[ ](?:raised|ignored)
    | Aborted | Fatal[ ]Python[ ]error | wandb: | srun: | =+$ | -+$ | ERROR:torch | WARNING:torch
    | Root[ ]Cause | Other[ ]Failures)""",
    re.VERBOSE,
)
_NOISE_ANYWHERE = re.compile(r"\bWarning: |\d%\|")
_TRAILING_LINES = 5
_LONG_MESSAGE_LINES = 60  # tensorflow's and NCCL's messages have many lines

# Launchers raise an exception of their own after the one of their worker.
_LAUNCHERS = ("ChildFailedError", "ProcessExitedException", "CalledProcessError")

_GPU_OOM = re.compile(
    r"""(?:Caught[ ]\w+[ ]in[ ].*)?(?:
      (?:CUDA|HIP|XPU|MPS[ ]backend)[ ]out[ ]of[ ]memory
    | (?:CUDA|HIP)[ ](?:driver[ ])?error:?[ ](?:\(\d+\)[ ])?out[ ]of[ ]memory
    | (?:CUDA|HIP)[ ]error:[ ](?:CUBLAS|HIPBLAS|CUSOLVER|CUSPARSE)_STATUS_ALLOC_FAILED
    | cuDNN[ ]error:[ ]CUDNN_STATUS_ALLOC_FAILED
    )""",
    re.VERBOSE,
)
_RESOURCE = re.compile(r"RESOURCE_EXHAUSTED|OOM when allocating|[Oo]ut of memory|failed to allocate", re.IGNORECASE)
_DRIVER = re.compile(
    r"CUDA_ERROR_OUT_OF_MEMORY|cudaErrorMemoryAllocation|cuMemAlloc\w{0,16} failed|[Cc]uda failure.{0,100}out of m"
)
_WORDS = re.compile(
    r"out of memory|OutOfMemory|\bOOM\b|_STATUS_ALLOC_FAILED|_STATUS_NOT_INITIALIZED|RESOURCE_EXHAUSTED"
    r"|ResourceExhausted|CUDA_ERROR_OUT_OF_MEMORY|cudaErrorMemoryAllocation"
)

# No number begins within a number, and none has more digits than 2**64 bytes need.
_SIZE = r"(?<![\d,.])(\d[\d,]{0,26}(?:\.\d{1,9})?)\s?(bytes|[KMGT]i?B|B)\b"
_TRIED = re.compile(rf"(?:[Tt]ried to allocate|trying to allocate|[Oo]ut of memory allocating|to allocate) {_SIZE}")
_IN_USE = re.compile(rf"this process has {_SIZE} memory in use")
_RESERVED = re.compile(rf"{_SIZE} reserved in total by PyTorch")
_ALLOCATED = re.compile(rf"{_SIZE} is allocated by PyTorch")
_UNALLOCATED = re.compile(rf"{_SIZE} is reserved by PyTorch but unallocated")
_SCALE = {"b": 1, "k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40}
_ABSURD_BYTES = 2**50  # torch prints 17179869184.00 GiB, 2**64 bytes, where the driver reports no usage


class Raised(NamedTuple):
    """The exception that ended a program: its type as printed, and its message with all lines."""

    type: str
    message: str


def evidence(outputs: list[str], *, failed: bool) -> dict[str, Any]:
    """Fields of `OomEvidence` that the outputs of one attempt bear out; {} where nothing points to memory.

    Takes time linear in the length of the outputs.
    """
    proof = next((found for text in outputs for found in _final_exceptions(text) if _is_oom(found)), None)
    if failed and proof is not None:
        return {
            "exception": True,
            "tried_bytes": _bytes(_TRIED, proof.message),
            "in_use_bytes": _in_use_bytes(proof.message),
        }
    return {"message": True} if any(_WORDS.search(text) for text in outputs) else {}


def _final_exceptions(text: str) -> list[Raised]:
    """The exceptions at the end of `text`: one for each rank that prefixes its lines, one for the other lines."""
    streams: dict[str | None, list[str]] = {}
    for raw in text.split("\n"):
        # A progress bar rewrites its line: only what follows the last carriage return was visible.
        line = _COLOR.sub("", raw.rstrip("\r").rpartition("\r")[2][:MAX_LINE_CHARS])
        match = _RANK.match(line)
        rank, rest = (match["rank"], match["line"]) if match else (None, line)
        streams.setdefault(rank, []).append(rest)
    found = [_final_exception(lines) for lines in streams.values()]
    return [exception for exception in found if exception is not None]


def _final_exception(lines: list[str]) -> Raised | None:
    starts = [i for i, line in enumerate(lines) if _HEADER.match(line) or _ABORT.match(line)]
    end = len(lines)
    for start in reversed(starts):
        found, at = _exception_after(lines, start, end)
        if found is None:
            return None
        if found.type.rpartition(".")[2] in _LAUNCHERS:
            end = start
            continue
        trailing = [line for line in lines[at + 1 : end] if line.strip() and not _is_noise(line)]
        limit = _LONG_MESSAGE_LINES if _explains_at_length(found.type) else _TRAILING_LINES
        return found if len(trailing) <= limit else None
    return None


def _exception_after(lines: list[str], start: int, end: int) -> tuple[Raised | None, int]:
    """The exception that ends the traceback beginning at `start`, and its line."""
    abort = _ABORT.match(lines[start])
    if abort:
        message = "\n".join(lines[start + 1 : end]).strip().removeprefix("what():").strip()
        return Raised(abort["type"].replace("::", "."), message), start
    for i in range(start + 1, end):
        line = lines[i]
        if not line.strip() or line[0].isspace():
            continue
        match = _EXCEPTION.match(line)
        if match:
            message = "\n".join([match["text"] or "", *lines[i + 1 : min(end, i + _LONG_MESSAGE_LINES)]])
            return Raised(match["type"], message), i
        if not _is_noise(line):
            return None, i
    return None, end


def _is_noise(line: str) -> bool:
    return _NOISE.match(line) is not None or _NOISE_ANYWHERE.search(line) is not None


def _explains_at_length(kind: str) -> bool:
    return kind.startswith(("tensorflow.", "jax")) or kind.endswith(("DistBackendError", "XGBoostError"))


def _is_oom(found: Raised) -> bool:
    name = found.type.rpartition(".")[2]
    if name == "OutOfMemoryError":
        return True
    if name in ("RuntimeError", "AcceleratorError", "Error", "CUDAError"):
        return _GPU_OOM.match(found.message) is not None
    if name in ("XlaRuntimeError", "JaxRuntimeError", "ResourceExhaustedError", "InternalError"):
        exhausted = name == "ResourceExhaustedError" or found.message.startswith("RESOURCE_EXHAUSTED")
        return exhausted and _RESOURCE.search(found.message) is not None
    return _DRIVER.search(found.message) is not None


def _in_use_bytes(message: str) -> int | None:
    """Bytes that the process held: from torch's message, or in older ones what its allocator had reserved."""
    in_use = _bytes(_IN_USE, message, least=0)  # 0 where not even a context could be created
    if in_use is not None:
        return in_use
    allocated, unallocated = _bytes(_ALLOCATED, message), _bytes(_UNALLOCATED, message)
    if allocated is not None and unallocated is not None:
        return allocated + unallocated
    return _bytes(_RESERVED, message)


def _bytes(pattern: re.Pattern[str], message: str, *, least: int = 1) -> int | None:
    match = pattern.search(message)
    if match is None:
        return None
    value = int(float(match[1].replace(",", "")) * _SCALE[match[2][0].lower()])
    return value if least <= value < _ABSURD_BYTES else None
