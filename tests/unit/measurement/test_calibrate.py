"""A calibration as a device profile that the estimator can read."""

from __future__ import annotations

import os
import sys

import pytest

from cotenant.cli.calibrate import step_json
from cotenant.core.errors import CotenantError, UsageError
from cotenant.core.units import MiB
from cotenant.gpu_specs import parse_gpu_spec
from cotenant.measurement import calibrate as module
from cotenant.measurement.calibrate import CalibrationReading, calibrate, profile_text, report
from cotenant.measurement.calibrate_child import workspaces
from cotenant.measurement.campaign import CampaignSetup
from cotenant.measurement.result_table import read_rows
from cotenant.study.export import runs_of
from json_shapes import SCHEMAS, problems

FACTS = {
    "gpu": "NVIDIA H200",
    "capability": [9, 0],
    "sm_count": 132,
    "torch_total_bytes": 150_000_000_000,
    "torch": "2.11.0",
    "cuda": "13.0",
    "cudnn": 91900,
    "reserved_bytes": 2 * MiB,
}


def a_reading(step, mib, **more):
    return CalibrationReading(step=step, outside_bytes=mib * MiB, by="process", answer={**FACTS, **more})


READINGS = [
    a_reading("bare", 400),
    a_reading("cublas", 420, handle_bytes=32 * MiB),
    CalibrationReading(step="cublaslt", outside_bytes=None, by="", problem="RuntimeError: no"),
    a_reading("cudnn", 450),
    a_reading("many", 480),
]


def test_json_of_a_calibration_has_the_documented_shape():
    body = {"profile": "", "steps": [step_json(reading) for reading in READINGS]}
    assert problems(body, SCHEMAS["calibrate"]) == []


def test_the_profile_reads_back():
    text = profile_text(READINGS, nvml_total_bytes=150_754_820_096, now="2026-11-21")
    found = parse_gpu_spec(text)
    assert (found.name, found.nvml_names) == ("H200-151GB-measured", ("NVIDIA H200",))
    assert (found.memory_total_bytes, found.torch_total_bytes) == (150_754_820_096, 150_000_000_000)
    assert (found.sm_count, found.compute_capability, found.cublas_workspace_bytes) == (132, (9, 0), 32 * MiB)
    context = found.context
    assert (context.low_bytes, context.typical_bytes, context.high_bytes) == (400 * MiB, 480 * MiB, 480 * MiB)
    assert (context.bare_bytes, context.cublas_bytes, context.derived) == (400 * MiB, 420 * MiB, False)
    assert "400 bare, 420 cublas, 450 cudnn, 480 many; 2026-11-21, torch 2.11.0" in context.source
    assert "2026-11-21" in found.sources["sm_count"]


def test_steps_that_failed_are_left_out():
    found = parse_gpu_spec(profile_text(READINGS[:1], nvml_total_bytes=None))
    assert found.context.typical_bytes == 400 * MiB
    assert found.context.cublas_bytes is None
    assert "not observed" in found.sources["cublas_workspace_bytes"]
    assert "failed: RuntimeError: no" in "\n".join(report(READINGS))


def test_without_a_bare_context_there_is_no_profile():
    with pytest.raises(CotenantError, match="no process could use the GPU"):
        profile_text(READINGS[1:], nvml_total_bytes=None)


def test_a_file_that_is_no_profile_is_refused():
    with pytest.raises(UsageError, match="not a GPU specification"):
        parse_gpu_spec("name = 'x'")


@pytest.mark.parametrize(
    ("step", "sizes", "found"),
    [
        ("cublas", [262144, 262144, 32 * MiB], {"handle_bytes": 32 * MiB}),
        ("cublaslt", [131072, MiB, 8 * MiB], {"lt_bytes": 8 * MiB}),
        ("cublas", [262144], {}),
        ("bare", [32 * MiB], {}),
    ],
)
def test_the_workspace_is_the_first_allocation_that_is_no_operand(step, sizes, found):
    assert workspaces(step, sizes) == found


def test_each_step_is_a_fresh_process_and_failures_are_reported(tmp_path, monkeypatch):
    child = tmp_path / "child.py"
    child.write_text(
        "import json, os, pathlib, sys\n"
        "assert sys.argv[1] != 'cudnn', 'no cudnn'\n"
        "facts = dict(reserved_bytes=10, device_total_bytes=100, device_free_bytes=30, pid=os.getpid())\n"
        "path = pathlib.Path(sys.argv[2]).with_suffix('.part')\n"
        "path.write_text(json.dumps(facts))\n"
        "path.rename(sys.argv[2])\n"
        "os.read(int(os.environ['COTENANT_HOLD_FD']), 1)\n"
    )
    monkeypatch.setattr(module, "CHILD", child)
    found = calibrate(CampaignSetup(out=tmp_path / "out", python=sys.executable, watch=None))
    readings = {result.step: (result.outside_bytes, result.by) for result in found}
    assert readings.pop("cudnn") == (None, "")
    assert set(readings.values()) == {(60, "device")}
    assert found[3].problem == "exit code 1; last line: AssertionError: no cudnn"
    pids = {result.answer["pid"] for result in found if result.answer}
    assert len(pids) == 4
    assert os.getpid() not in pids
    rows = read_rows(tmp_path / "out" / "calibrate.csv")
    assert [(row["step"], row["repeat"], row["outside_bytes"]) for row in rows if row["outcome"] == "ok"] == [
        (step, "1", "60") for step in ("bare", "cublas", "cublaslt", "many")
    ]
    (failed,) = [row for row in rows if row["outcome"] == "failed"]
    assert failed["message"] == "exit code 1; last line: AssertionError: no cudnn"
    assert [(run.study, run.fields["step"]) for run in runs_of(tmp_path / "out")][:2] == [
        ("calibrate", "bare"), ("calibrate", "cublas"),
    ]  # fmt: skip
