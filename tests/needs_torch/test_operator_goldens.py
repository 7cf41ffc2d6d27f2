"""The tracer allocates for PyTorch's operators what a CUDA build allocated on a null GPU.

`benchmarks/estimator/operators.py --golden` wrote what the null GPU counted. `COTENANT_ALL_GOLDENS=1` compares all
operators, which takes minutes; otherwise a twentieth of them is compared.
"""

from __future__ import annotations

import gzip
import json
import os

import pytest

pytest.importorskip("torch", reason="tracing needs torch")

import torch

from benchmarks.estimator.jobs.operator_calls import PHASES, call_of, name_of, operator_database
from benchmarks.estimator.operators import GOLDEN, SCRIPT, UNIT_BYTES, calls_in, events_of
from traced_scripts import traced

PARTS = 20
COMPARED = range(PARTS) if os.environ.get("COTENANT_ALL_GOLDENS") == "1" else (7,)


@pytest.fixture(scope="module")
def golden():
    found = json.loads(gzip.decompress(GOLDEN.read_bytes()))
    if torch.__version__.partition("+")[0] != found["torch"]:
        pytest.skip(f"the samples are of torch {found['torch']}")
    return {int(number): sizes for number, sizes in found["calls"].items()}


@pytest.mark.parametrize("part", COMPARED)
def test_operators_allocate_what_a_cuda_build_allocates(golden, part, tmp_path):
    wanted = {number: sizes for number, sizes in golden.items() if call_of(number).operator % PARTS == part}
    assert len(wanted) > 100
    trace = traced(tmp_path, SCRIPT.read_text(), str(part), str(PARTS))
    found = {
        number: [call.peak // UNIT_BYTES, *(block // UNIT_BYTES for block in call.blocks)]
        for number, call in calls_in(events_of(trace)).items()
    }
    names = [name_of(operator) for operator in operator_database()]
    differing = {
        (names[call.operator], PHASES[call.phase]): (found.get(number), sizes)
        for number, sizes in wanted.items()
        if found.get(number) != sizes
        for call in [call_of(number)]
    }
    assert not differing
