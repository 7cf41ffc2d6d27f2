"""What PyTorch's operators allocate, on its own tests' samples: the tracer beside a CUDA build on a null GPU.

    python -m benchmarks.estimator.operators --python VENV/bin/python [--parts N] [--golden] [--write]

VENV has a CUDA build of torch. If it is of the version that is installed here, the trace runs here, else in VENV, which
needs NumPy then. `jobs/operator_calls.py` calls each operator on its largest samples and differentiates it. Compared
are the blocks that a call allocates, in their order, and its peak. `--golden` writes what the null GPU counted for the
calls that agree, where a test holds the tracer to it.

Left out: convolutions, whose workspaces `oracle` judges, and calls that raise on the null GPU.
"""

from __future__ import annotations

import argparse
import gzip
import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks._lib.results import add_write_option, commit, today, version, write_result
from benchmarks.estimator.jobs import operator_calls
from benchmarks.estimator.jobs.operator_calls import END, FAILED, START, UNIT_BYTES, call_of
from cotenant.core.trace import MemoryTrace
from cotenant.estimators.api import explain
from cotenant.estimators.replay_input import ReplayInput
from cotenant.gpu_specs import gpu_spec
from cotenant.nullgpu import build_libraries, find_wheels, run_script

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "benchmarks" / "estimator" / "jobs" / "operator_calls.py"
GOLDEN = ROOT / "tests" / "golden" / "operator_calls.json.gz"
CACHE = Path.home() / ".cache" / "cotenant" / "null-gpu"
GPU = "A100-40GB"
PARTS = 20
TIMEOUT_S = 3600.0
BY_VALUES = frozenset(
    (
        *("__getitem__", "_unsafe_masked_index", "_unsafe_masked_index_put_accumulate", "argwhere", "bincount"),
        *("combinations", "index_put", "masked.prod", "masked_fill", "masked_scatter", "masked_select", "nonzero"),
        *("repeat_interleave", "to_sparse", "unique", "unique_consecutive"),
    )
)
"""Operators that count values, or select by them: zeros on the null GPU, and not known in a trace."""


@dataclass
class Allocations:
    """Of one call.

    Attributes:
        blocks: bytes of each block, in order.
        peak: of the blocks of this call that are alive.
    """

    blocks: list[int] = field(default_factory=list)
    peak: int = 0
    failed: bool = False


def calls_in(events: Iterable[int]) -> dict[int, Allocations]:
    """Allocations by the number of the call; `events` as in `nullgpu.RequestHistory`."""
    found: dict[int, Allocations] = {}
    sizes: dict[int, int] = {}
    current, marks, live, count = Allocations(), 0, 0, 0
    for event in events:
        if event < 0:
            live -= sizes.pop(-event, 0)
            continue
        count += 1
        if event == START:
            marks = 1
        elif marks == 1:
            current = found[event // UNIT_BYTES] = Allocations()
            sizes, live, marks = {}, 0, 2
        elif marks == 2 and event == FAILED:
            current.failed = True
        elif event == END:
            marks = 0
        elif marks == 2:
            block = sizes[count] = max(UNIT_BYTES, -(-event // UNIT_BYTES) * UNIT_BYTES)
            live += block
            current.blocks.append(block)
            current.peak = max(current.peak, live)
    return found


def events_of(trace: MemoryTrace | ReplayInput) -> list[int]:
    """A trace's allocations and frees as in `nullgpu.RequestHistory`."""
    events: list[int] = []
    numbers: dict[int, int] = {}
    for event in trace.events:
        if event.action == "alloc" and event.bytes:
            numbers[event.storage_id] = len(numbers) + 1
            events.append(event.bytes)
        elif event.action == "free" and event.storage_id in numbers:
            events.append(-numbers[event.storage_id])
    return events


def on_null_gpu(python: str, part: int, parts: int) -> dict[int, Allocations]:
    """What PyTorch allocates."""
    libraries = build_libraries(find_wheels(python), CACHE)
    command = [str(SCRIPT), str(part), str(parts)]
    run = run_script(libraries, gpu_spec(GPU), command, record=True, timeout_s=TIMEOUT_S)
    if run.error:
        raise SystemExit(f"on the null GPU the script raised {run.error}")
    return calls_in(run.history.events)


def in_trace(part: int, parts: int, python: str | None) -> dict[int, Allocations]:
    """What the tracer says it allocates, in the environment of `python` or in this one."""
    result = explain(SCRIPT, [str(part), str(parts)], gpu=GPU, python=python, timeout_s=TIMEOUT_S, cache=False)
    return calls_in(events_of(result.traced_input))  # with the workspaces of cuBLAS, which versions of torch differ in


def operators_of(python: str) -> tuple[str, list[str]]:
    """(Version of torch without its build, name of each operator in its database), in the environment of `python`."""
    code = "import json, torch, operator_calls as calls; names = map(calls.name_of, calls.operator_database()); "
    code += "print(json.dumps([torch.__version__, [*names]]))"
    found = subprocess.run([python, "-c", code], capture_output=True, text=True, check=True, cwd=SCRIPT.parent)
    torch_version, names = json.loads(found.stdout)
    return torch_version.partition("+")[0], names


def verdict(name: str, ours: Allocations | None, theirs: Allocations) -> str:
    """How a call compares."""
    if theirs.failed:
        return "not judged: raises on the null GPU"
    if "conv" in name:
        return "not judged: a convolution"
    if ours is None or ours.failed:
        return "raises in the trace only"
    if ours.blocks == theirs.blocks and ours.peak == theirs.peak:
        return "equal"
    if name.partition(" ")[0] in BY_VALUES:
        return "differs by values"
    return "equal peak, another order" if ours.peak == theirs.peak else "differs"


def judge(
    python: str, parts: int, names: Sequence[str], *, trace_python: str | None = None
) -> tuple[Counter[str], list[str], dict[str, list[int]]]:
    """(Calls by verdict, a row for each operator and phase that differs, blocks and peak of the calls that agree)."""
    verdicts: Counter[str] = Counter()
    largest: dict[tuple[str, str], tuple[float, str]] = {}
    differing: Counter[tuple[str, str]] = Counter()
    golden: dict[str, list[int]] = {}
    for part in range(parts):
        with ThreadPoolExecutor(max_workers=2) as pool:
            sides = pool.submit(on_null_gpu, python, part, parts), pool.submit(in_trace, part, parts, trace_python)
            theirs, ours = (side.result() for side in sides)
        print(f"part {part + 1} of {parts}: {len(theirs)} calls", file=sys.stderr, flush=True)
        for number, wanted in theirs.items():
            call = call_of(number)
            name = names[call.operator]
            found = verdict(name, ours.get(number), wanted)
            verdicts[found] += 1
            if found == "equal":
                golden[str(number)] = [wanted.peak, *wanted.blocks]
            elif found in ("differs", "differs by values", "raises in the trace only"):
                key = (name, operator_calls.PHASES[call.phase])
                differing[key] += 1
                peak = ours[number].peak if number in ours else 0
                row = (abs(peak - wanted.peak) / 2**10, f"{wanted.peak / 2**10:.1f} | {peak / 2**10:.1f} | {found}")
                largest[key] = max(largest.get(key, (-1.0, "")), row)
    rows = [
        f"| `{name}` | {phase} | {differing[name, phase]} | {row} |"
        for (name, phase), (_, row) in sorted(largest.items(), key=lambda item: (-item[1][0], item[0]))
    ]
    return verdicts, rows, golden


def report(verdicts: Mapping[str, int], rows: Sequence[str], operators: int, torch_version: str) -> list[str]:
    """The page below its title."""
    judged = sum(count for name, count in verdicts.items() if not name.startswith("not judged"))
    return [
        f"torch {torch_version}, {GPU}. {operators} operators and variants; {judged} calls are judged.",
        "",
        "| call | calls | share of the judged |",
        "| --- | ---: | ---: |",
        *(
            f"| {name} | {count} | {'' if name.startswith('not judged') else f'{count / judged:.1%}'} |"
            for name, count in sorted(verdicts.items(), key=lambda item: -item[1])
        ),
        "",
        "What differs, each with the call that differs most:",
        "",
        "| operator | phase | calls | peak of PyTorch, KiB | peak of the trace, KiB | verdict |",
        "| --- | --- | ---: | ---: | ---: | --- |",
        *rows,
    ]


def write_golden(golden: Mapping[str, Sequence[int]]) -> None:
    """Blocks in units of 512 bytes, by call, and the version of torch that they are of."""
    calls = {number: [size // UNIT_BYTES for size in sizes] for number, sizes in golden.items()}
    text = json.dumps({"torch": version("torch").partition("+")[0], "calls": calls}, separators=(",", ":"))
    with gzip.GzipFile(GOLDEN, "wb", mtime=0) as file:
        file.write(text.encode())


def main() -> int:
    """Compare all parts, print the page, and write what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", required=True, help="of the environment with a CUDA build")
    parser.add_argument("--parts", type=int, default=PARTS, help="runs that the operators are divided into")
    parser.add_argument("--golden", action="store_true", help=f"write {GOLDEN.relative_to(ROOT)}")
    add_write_option(parser)
    options = parser.parse_args()
    judged = commit()  # before the golden changes the tree
    torch_version, names = operators_of(options.python)
    here = version("torch").partition("+")[0] == torch_version
    if options.golden and not here:
        parser.error(f"the golden is of the torch that is installed here; `--python` has {torch_version}")
    trace_python = None if here else options.python
    verdicts, rows, golden = judge(options.python, options.parts, names, trace_python=trace_python)
    lines = report(verdicts, rows, len(names), version("torch") if here else torch_version)
    print("\n".join(lines))
    if options.golden:
        write_golden(golden)
    if options.write:
        head = (
            f"# Allocations of PyTorch's operators, {today()}\n\nCommit {judged}. Repeat with `python -m "
            f"benchmarks.estimator.operators --python PYTHON --write`.\n"
        )
        write_result("operators" if here else f"operators-torch-{torch_version}", "\n".join([head, *lines]))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
