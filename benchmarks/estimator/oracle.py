"""Compares estimates with PyTorch's CUDA build on a null GPU, allocation by allocation.

    python -m benchmarks.estimator.oracle --python VENV/bin/python [--gpu NAME ...] [--only GLOB] [--quick] [--write]

VENV has a CUDA build of torch 2.8 or newer, and torchvision, timm and transformers for the examples that use them. Each
job runs for three optimizer steps on both sides in the same environment, so that the estimate queries the same cuDNN.
The table has reserved bytes, their difference, the share of PyTorch's allocations that the estimate has in the same
order, and the first missing one. Sizes are compared as blocks, rounded up to 512 bytes.
"""

from __future__ import annotations

import argparse
import difflib
import fnmatch
import platform
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks._lib.results import add_write_option, commit, today, write_result
from cotenant.core.errors import CotenantError
from cotenant.core.units import MiB, format_bytes
from cotenant.estimators.api import explain
from cotenant.gpu_specs import gpu_spec
from cotenant.nullgpu import NullGpuLibraries, build_libraries, find_wheels, run_script

ROOT = Path(__file__).resolve().parents[2]
CACHE = Path.home() / ".cache" / "cotenant" / "null-gpu"
JOBS = (
    "mlp.py",
    "resnet50.py --batch-size 32",
    "resnet50.py --batch-size 64",
    "vgg16.py --batch-size 32",
    "xception.py --batch-size 32",
    "inception_v3.py --batch-size 32",
    "efficientnet_b0.py --batch-size 32",
    "mobilenet_v2.py --batch-size 64",
    "cifar.py",
    "bert_mlm.py --size base --batch-size 32",
    "gpt2.py",
    "hf_trainer_bf16.py",
    "amp_gradscaler.py",
    "accumulate_checkpoint.py",
    "attention.py",
    "gan.py",
    "optimizers.py",
    "moe.py",
    "cuda_graph.py",
    "segmentation.py",
    "speech.py",
    "translate_rnn.py",
    "video.py",
)
"""Examples whose control flow does not depend on device values, which are zeros on the null GPU."""


@dataclass(frozen=True)
class Comparison:
    """One job on one GPU, on both sides; sizes in bytes."""

    job: str
    gpu: str
    problem: str = ""
    null_reserved_bytes: int = 0
    reserved_bytes: int = 0
    null_allocations: int = 0
    equal_allocations: int = 0
    first_difference: str = ""

    @property
    def error(self) -> float:
        """Relative error of the reserved bytes; positive if the estimate is too high."""
        return (self.reserved_bytes - self.null_reserved_bytes) / self.null_reserved_bytes


def compare(libraries: NullGpuLibraries, job: str, gpu: str) -> Comparison:
    script, *arguments = job.split()
    path = str(ROOT / "examples" / script)
    try:
        null = run_script(libraries, gpu_spec(gpu), [path, *arguments], record=True, workdir=ROOT)
        if null.ended == "raised":
            return Comparison(job, gpu, problem=f"null GPU: {' '.join(null.error.split())}")
        ours = explain(path, arguments, gpu=gpu, python=libraries.wheels.python, workdir=ROOT, timeout_s=600)
    except CotenantError as error:
        return Comparison(job, gpu, problem=" ".join(str(error).split())[-200:])
    events = [event for event in ours.replay_input.events if event.action == "alloc" and event.bytes > 0]
    # The estimate continues to the end of the last step and to the code after training.
    blocks = [rounded(event.bytes) for event in events][: len(null.allocations) + 500]
    wanted = [rounded(size) for size in null.allocations]
    equal, first = alike(wanted, blocks)
    place = "" if first is None else f"{first[0]}: {first[1]}"
    return Comparison(
        job,
        gpu,
        null_reserved_bytes=null.peak_reserved_bytes,
        reserved_bytes=ours.estimate.peak_reserved_bytes,
        null_allocations=len(wanted),
        equal_allocations=equal,
        first_difference=place,
    )


def rounded(size: int) -> int:
    """The block that the caching allocator makes for `size` bytes (c10, `round_size`, without divisions)."""
    return max(512, -(-size // 512) * 512)


def alike(wanted: Sequence[int], found: Sequence[int]) -> tuple[int, tuple[int, str] | None]:
    """Number of `wanted` sizes found in the same order, and the first mismatch as (index, text)."""
    equal, first = 0, None
    for tag, begin, end, other_begin, other_end in difflib.SequenceMatcher(
        None, wanted, found, autojunk=False
    ).get_opcodes():
        if tag == "equal":
            equal += end - begin
        elif first is None and begin < len(wanted):
            theirs, ours = wanted[begin : min(end, begin + 3)], found[other_begin : min(other_end, other_begin + 3)]
            first = (begin, f"null {list(theirs)}, estimate {list(ours)}")
    return equal, first


def report_lines(rows: Sequence[Comparison]) -> Iterator[str]:
    yield "| job | GPU | null | estimate | error | allocations | equal | first difference (bytes) |"
    yield "| --- | --- | ---: | ---: | ---: | ---: | ---: | --- |"
    for row in rows:
        if row.problem:
            yield f"| `{row.job}` | {row.gpu} | - | - | - | - | - | {row.problem} |"
            continue
        sizes = f"{format_bytes(row.null_reserved_bytes)} | {format_bytes(row.reserved_bytes)} | {row.error:+.2%}"
        counts = f"{row.null_allocations:,} | {row.equal_allocations / max(1, row.null_allocations):.1%}"
        yield f"| `{row.job}` | {row.gpu} | {sizes} | {counts} | {row.first_difference} |"
    answered = [row for row in rows if not row.problem]
    if answered:
        equal = sum(row.null_reserved_bytes == row.reserved_bytes for row in answered)
        near = sum(abs(row.error) <= 0.005 for row in answered)
        far = sum(abs(row.error) > 0.02 for row in answered)
        yield ""
        counts = f"{equal} have equal reserved bytes, {near} are within 0.5 %, {far} are off by more than 2 %"
        yield f"Of {len(answered)} answers {counts}."


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", help="a Python with a CUDA build of torch 2.8 or newer")
    parser.add_argument("--gpu", action="append", help="GPU to compare on; may be repeated (default: A100-40GB)")
    parser.add_argument("--only", default="*", help="jobs whose name matches this pattern")
    parser.add_argument("--quick", action="store_true", help="one perceptron")
    add_write_option(parser)
    args = parser.parse_args()
    if not args.python:
        print("needs --python: a Python with a CUDA build of torch; nothing compared")
        return 0
    libraries = build_libraries(find_wheels(args.python), CACHE)
    jobs = JOBS[:1] if args.quick else [job for job in JOBS if fnmatch.fnmatch(job, args.only)]
    rows = []
    for gpu in args.gpu or ["A100-40GB"]:
        for job in jobs:
            row = compare(libraries, job, gpu)
            rows.append(row)
            outcome = row.problem or f"{row.null_reserved_bytes / MiB:.0f} {row.reserved_bytes / MiB:.0f} MiB"
            print(f"{gpu} {job}: {outcome}", flush=True)
    lines = list(report_lines(rows))
    print("\n".join(lines))
    if args.write:
        cudnn = ".".join(map(str, libraries.wheels.cudnn))
        versions = f"CUDA {libraries.wheels.cuda_major}, cuDNN {cudnn}, Python {platform.python_version()}"
        head = f"Commit {commit()}; {versions}; no GPU."
        repeat = "Repeat with `python -m benchmarks.estimator.oracle --python VENV/bin/python --write`."
        write_result("oracle", "\n".join([f"# Estimates beside a null GPU, {today()}", "", head, repeat, "", *lines]))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
