"""Measures cuDNN's workspaces of convolutions on this GPU, and compares them with our table and our rule.

The shapes are a sample of those in the shipped table. A separate process runs forward, input gradient and weight
gradient of each shape once, and reads from the allocator's history what was allocated for the duration of the call.
"""

from __future__ import annotations

import gzip
import json
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from cotenant.core.errors import CotenantError
from cotenant.core.trace import LibraryCall
from cotenant.core.units import MiB
from cotenant.engines.held_process import HeldProcess
from cotenant.estimators.cudnn.table import cudnn_table
from cotenant.estimators.cudnn.workspaces import ConvRule
from cotenant.measurement.campaign import CampaignSetup, Say, open_table
from cotenant.measurement.result_table import ResultTable

CHILD = Path(__file__).with_name("conv_child.py")
COLUMNS: Mapping[str, str] = {
    "call": "conv_forward, conv_dgrad or conv_wgrad",
    "dtype": "of all operands",
    "channels_last": "0 or 1",
    "batch": "",
    "in_channels": "",
    "out_channels": "",
    "height": "of the input",
    "width": "of the input",
    "kernel_height": "",
    "kernel_width": "",
    "stride": "height x width",
    "padding": "height x width",
    "dilation": "height x width",
    "out_height": "",
    "out_width": "",
    "workspace_bytes": "allocated and freed during the call, in sum",
    "temporaries": "the same as a list, separated by spaces",
    "peak_bytes": "peak of allocated bytes during the call above those after it, by torch.cuda.max_memory_allocated",
    "table_bytes": "workspace in our table; empty if it has none",
    "rule_bytes": "workspace that an estimate assumes",
    "problem": "why the call failed",
    "cudnn": "",
    "gpu": "",
}
GEOMETRIES = 240
BATCH = 32
_UNGROUPED = 17
"""Columns of a convolution without groups in the table."""
MAX_BYTES = 1024 * MiB
"""Maximum size of an operand: larger ones take long and add no information."""


def grid(count: int = GEOMETRIES) -> list[dict[str, Any]]:
    """Cases to measure: `count` shapes of the table in float32, some at other batch sizes and dtypes. Deterministic."""
    shapes = [shape for shape in _table_shapes() if _is_possible(shape) and _largest_bytes(shape, BATCH) <= MAX_BYTES]
    chosen = shapes[:: max(1, len(shapes) // count)][:count]
    found = []
    for index, shape in enumerate(chosen):
        found.append(_case(shape, BATCH, "float32", channels_last=False))
        if index % 3 == 0 and _largest_bytes(shape, 4 * BATCH) <= MAX_BYTES:
            found.append(_case(shape, 4 * BATCH, "float32", channels_last=False))
        if index % 4 == 1:
            found.append(_case(shape, BATCH, "float32", channels_last=True))
            found.append(_case(shape, BATCH, "bfloat16", channels_last=False))
            found.append(_case(shape, BATCH, "bfloat16", channels_last=True))
            found.append(_case(shape, BATCH, "float16", channels_last=False))
    return found


def run_convs(setup: CampaignSetup, *, resume: bool, say: Say) -> dict[str, object]:
    """Write `DIR/convs.csv` and give a summary of the errors of table and rule.

    Raises:
        CotenantError: the measuring process died; rows measured before are saved.
    """
    with open_table(setup.out / "convs.csv", COLUMNS, resume=resume) as table:
        done = {_key(row) for row in table.rows()}
        cases = [
            case for case in grid() if any(_key({**_shape_cells(case), "call": call}) not in done for call in CALLS)
        ]
        say(f"{len(cases)} convolutions to measure")
        answer = _run(cases, setup) if cases else {}
        for row in conv_rows(_lines(setup.out / "convs.jsonl")):
            if _key(row) not in done:
                table.add(row)
        if answer.get("problem"):
            raise CotenantError(f"measuring convolutions failed: {answer['problem']}", hint="continue with `--resume`")
        return summary(table)


CALLS = ("conv_forward", "conv_dgrad", "conv_wgrad")


def _run(cases: Sequence[Mapping[str, Any]], setup: CampaignSetup) -> dict[str, Any]:
    """Measure `cases` in a process, which writes one line per case."""
    paths = {name: (setup.out / f"convs.{name}").resolve() for name in ("request.json", "jsonl", "answer.json", "log")}
    paths["request.json"].write_text(json.dumps(list(cases)))
    command = [setup.python, str(CHILD), str(paths["request.json"]), str(paths["jsonl"]), str(paths["answer.json"])]
    run = HeldProcess(
        command, workdir=str(setup.out), env=setup.plain_env(), log=paths["log"], answer=paths["answer.json"]
    )
    limit_s = setup.limit_s or 600.0
    try:
        in_time = run.wait(limit_s)
    finally:
        ended = run.release()
    if ended.answer is not None:
        return ended.answer
    return {"problem": ended.failure(in_time=in_time, limit_s=limit_s)}


def conv_rows(lines: Iterable[Mapping[str, Any]]) -> Iterator[dict[str, object]]:
    """A row for each call of each line that the process wrote, with estimates for its GPU."""
    for line in lines:
        case, gpu = line["case"], line["gpu"]
        rule = ConvRule(capability=(gpu["capability"][0], gpu["capability"][1]), sm_count=gpu["sm_count"])
        table = cudnn_table(rule.capability)
        for call in CALLS:
            found = line["calls"].get(call, {})
            op = LibraryCall(kind=call, thread="main", params=case)
            yield {
                **_shape_cells(case),
                "call": call,
                "workspace_bytes": found.get("workspace_bytes"),
                "temporaries": " ".join(map(str, found.get("temporaries", ()))),
                "peak_bytes": found.get("peak_bytes"),
                "table_bytes": None if table is None else table(op),
                "rule_bytes": rule(op),
                "problem": found.get("problem"),
                "cudnn": gpu["cudnn"],
                "gpu": gpu["name"],
            }


def summary(table: ResultTable) -> dict[str, object]:
    """Counts of calls, of estimates within 5 % or 1 MiB, and of calls without a workspace."""
    rows = [row for row in table.rows() if row["workspace_bytes"]]
    found: dict[str, object] = {"calls": len(rows), "failed": sum(1 for row in table.rows() if row["problem"])}
    for name in ("rule_bytes", "table_bytes"):
        pairs = [(int(row[name]), int(row["workspace_bytes"])) for row in rows if row[name] not in ("", None)]
        near = sum(abs(said - took) <= max(MiB, 0.05 * took) for said, took in pairs)
        found[f"{name.removesuffix('_bytes')}_near"] = f"{near} of {len(pairs)}"
        found[f"{name.removesuffix('_bytes')}_low"] = sum(said < took - MiB for said, took in pairs)
    sizes = [int(row["workspace_bytes"]) for row in rows]
    found["without_workspace"] = sum(size == 0 for size in sizes)
    found["median_workspace_bytes"] = int(statistics.median(sizes)) if sizes else None
    return found


def _lines(path: Path) -> list[dict[str, Any]]:
    """Complete lines of the process; a truncated last line is left out."""
    if not path.exists():
        return []
    found = []
    for line in path.read_text().split("\n")[:-1]:
        found.append(json.loads(line))
    return found


def _table_shapes() -> list[tuple[int, ...]]:
    file = resources.files("cotenant.estimators") / "data" / "cudnn" / "sm90_92000_float32.csv.gz"
    lines = gzip.decompress(file.read_bytes()).decode().splitlines()[1:]
    cells = (line.split(",") for line in lines)
    return [tuple(map(int, row[:14])) for row in cells if len(row) == _UNGROUPED]


def _is_possible(shape: Sequence[int]) -> bool:
    """Whether the output size follows from the input size. Networks that pad separately left others in the table."""
    sides, kernel, stride, padding, dilation, out = (shape[2 * i : 2 * i + 2] for i in range(1, 7))
    return all(
        (sides[i] + 2 * padding[i] - dilation[i] * (kernel[i] - 1) - 1) // stride[i] + 1 == out[i] for i in (0, 1)
    )


def _largest_bytes(shape: Sequence[int], batch: int) -> int:
    c, k, h, w, r, s = shape[:6]
    out_h, out_w = shape[12:]
    return 4 * max(batch * c * h * w, batch * k * out_h * out_w, c * k * r * s)


def _case(shape: Sequence[int], batch: int, dtype: str, *, channels_last: bool) -> dict[str, Any]:
    """The `params` of an `LibraryCall`."""
    c, k, h, w, r, s, stride_h, stride_w, pad_h, pad_w, dil_h, dil_w, out_h, out_w = shape
    return {
        "x": [batch, c, h, w],
        "w": [k, c, r, s],
        "y": [batch, k, out_h, out_w],
        "stride": [stride_h, stride_w],
        "padding": [pad_h, pad_w],
        "dilation": [dil_h, dil_w],
        "groups": 1,
        "dtype": dtype,
        "channels_last": channels_last,
        "transposed": False,
        "benchmark": False,
        "deterministic": False,
        "allow_tf32": True,
    }


def _shape_cells(case: Mapping[str, Any]) -> dict[str, object]:
    def pair(name: str) -> str:
        return "x".join(map(str, case[name]))

    return {
        "dtype": case["dtype"],
        "channels_last": int(case["channels_last"]),
        "batch": case["x"][0],
        "in_channels": case["x"][1],
        "out_channels": case["w"][0],
        "height": case["x"][2],
        "width": case["x"][3],
        "kernel_height": case["w"][2],
        "kernel_width": case["w"][3],
        "stride": pair("stride"),
        "padding": pair("padding"),
        "dilation": pair("dilation"),
        "out_height": case["y"][2],
        "out_width": case["y"][3],
    }


_KEY = tuple(COLUMNS)[:15]


def _key(row: Mapping[str, object]) -> tuple[str, ...]:
    """Identity of a measurement, as strings."""
    return tuple(str(row[name]) for name in _KEY)
