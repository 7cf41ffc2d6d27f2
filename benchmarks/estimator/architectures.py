"""Coverage of the tracer: two training steps of every architecture of torchvision, timm and transformers.

    python -m benchmarks.estimator.architectures [--quick] [--write] [--every N] [--library NAME]

`--every N` takes every N-th model. A failed model is not retried with other inputs; the result has its message, even
if the synthetic batch of `jobs/architecture.py` is wrong. The batch size is 2. `estimate_latency.py` measures the time
of a trace; `published_scripts.py` and `ground_truth.py` measure its accuracy.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import re
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from benchmarks._lib.results import add_write_option, commit, today, version, write_result
from cotenant.core.errors import TraceError
from cotenant.core.ports import TraceOptions
from cotenant.core.trace import MemoryTrace
from cotenant.tracing.process.forkserver_client import ForkServerClient
from cotenant.tracing.process.program import Program
from cotenant.tracing.process.trace_script import trace_script

ROOT = Path(__file__).resolve().parents[2]
JOB = "benchmarks/estimator/jobs/architecture.py"
LIBRARIES = ("torchvision", "timm", "transformers")
QUICK = {"torchvision": ["resnet18"], "timm": ["test_vit"], "transformers": ["BertForMaskedLM"]}
GPU = {"name": "H200", "total_bytes": 141 << 30, "capability": (9, 0), "sm_count": 132, "count": 1}
TIMEOUT_S = 120.0
QUANTIZED = "quantized_"


def names(library: str) -> list[str]:
    """All architectures of an installed library, as `jobs/architecture.py` knows them."""
    if importlib.util.find_spec(library) is None:
        return []
    if library == "transformers":
        return _of_transformers()
    _let_torchvision_import()
    if library == "timm":
        import timm

        return list(timm.list_models())
    from torchvision import models

    return [model for model in models.list_models() if not model.startswith(QUANTIZED)]


def _of_transformers() -> list[str]:
    """Classes that its tables of models name, without the bare models where there is one with a head."""
    from transformers.models.auto import modeling_auto

    tables = [
        table_value
        for name, table_value in vars(modeling_auto).items()
        if re.fullmatch(r"MODEL_FOR_.*_MAPPING_NAMES", name)
    ]
    found = {
        kind
        for table in tables
        for table_value in table.values()
        for kind in ([table_value] if isinstance(table_value, str) else table_value)
    }
    return sorted(found)


def _let_torchvision_import() -> None:
    """Declare torchvision's operators, without which its CUDA build does not import with a CPU build of torch."""
    if "torchvision" in sys.modules:
        return
    from cotenant.tracing.operators import torchvision_ops

    spec = importlib.util.find_spec("torchvision")
    torchvision_ops.load_or_declare(Path(spec.origin).parent if spec is not None and spec.origin else None)


def traces(library: str, chosen: list[str]) -> Iterator[tuple[str, MemoryTrace | TraceError]]:
    """(Name, trace or error) of each model."""
    with ForkServerClient() as warm:
        for name in chosen:
            program = Program(python=sys.executable, kind="script", target=JOB, args=(library, name))
            where = {"workdir": str(ROOT), "env": dict(os.environ), "timeout_s": TIMEOUT_S}
            try:
                yield name, trace_script(program, gpu=GPU, options=TraceOptions(steps=2), forkserver=warm, **where)  # type: ignore[arg-type]
            except TraceError as error:
                yield name, error


def measure(library: str, chosen: list[str]) -> tuple[str, list[str]]:
    """A table row, and a line for each model whose trace failed or is partial."""
    counted: Counter[str] = Counter()
    lines = []
    for name, found in traces(library, chosen):
        kind = found.kind if isinstance(found, TraceError) else "partial" if found.partial else "traced"
        counted[kind] += 1
        if kind != "traced":
            why = found.message if isinstance(found, TraceError) else found.warnings[-1]
            lines.append(f"- {library} `{name}`: {kind}: {why}")
        print(library, name, kind, file=sys.stderr, flush=True)
    others = ", ".join(f"{count} {kind}" for kind, count in sorted(counted.items()) if kind != "traced") or "none"
    row = f"| {library} {version(library)} | {len(chosen)} | {counted['traced']} | {others} |"
    return row, lines


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one model of each library")
    add_write_option(parser)
    parser.add_argument("--every", type=int, default=1, metavar="N", help="take every N-th model")
    parser.add_argument(
        "--library", choices=LIBRARIES, action="append", help="library to trace; may be repeated (default: all)"
    )
    args = parser.parse_args()
    rows, failed = [], []
    for library in args.library or LIBRARIES:
        row, lines = measure(library, QUICK[library] if args.quick else names(library)[:: args.every])
        rows.append(row)
        failed += lines
    table = ["| library | models | traced | not traced |", "| --- | ---: | ---: | --- |", *rows]
    report = "\n".join([f"torch {version('torch')}.", "", *table, "", *failed])
    print(report)
    if args.write:
        repeat = " ".join(["python -m benchmarks.estimator.architectures", *sys.argv[1:]])
        write_result(
            "architectures", f"# Architectures, {today()}\n\nCommit {commit()}. Repeat with `{repeat}`.\n{report}"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
