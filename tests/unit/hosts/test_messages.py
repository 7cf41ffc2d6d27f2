"""What an agent may say: everything else is refused before it reaches the daemon."""

from __future__ import annotations

import json

import pytest

from builders import a_gpu
from cotenant.core import codec
from cotenant.core.gpu import GpuProcess, GpuSample
from cotenant.core.ports import AttemptRef
from cotenant.hosts.messages import (
    MAX_GPUS,
    VERSION,
    MalformedMessage,
    is_number,
    line_of,
    node_of,
    parsed,
    reading_of,
    ref_of,
)


def said(**changes):
    sample = GpuSample(at_s=5.0, used_bytes=7, processes=(GpuProcess(pid=12, used_bytes=7),))
    fields = {"clock_s": 5.0, "gpus": [a_gpu()], "samples": {"GPU-0": sample}, "owners": {"12": [3, 1]}}
    return json.loads(codec.to_json({**fields, **changes}))


def test_a_reading_arrives_with_the_name_that_the_configuration_gives_its_host():
    reading = reading_of(parsed(line_of(said())), "n1")
    assert [gpu.server for gpu in reading.gpus] == ["n1"]
    assert reading.samples["GPU-0"].processes[0].used_bytes == 7
    assert reading.owners == {12: AttemptRef(job_id=3, attempt=1)}


def changed(part, name, value):
    message = said()
    target = message[part][0] if part == "gpus" else message[part]["GPU-0"]
    target[name] = value
    return message


@pytest.mark.parametrize(
    "message",
    [
        pytest.param({}, id="empty"),
        pytest.param(said(clock_s=-1), id="time before 1970"),
        pytest.param(said(gpus=[]), id="sample of an unknown GPU"),
        pytest.param(said(gpus=[a_gpu(), a_gpu()]), id="twice"),
        pytest.param(said(gpus=[a_gpu(index) for index in range(MAX_GPUS + 1)], samples={}), id="too many GPUs"),
        pytest.param(said(owners={"12": [0, 1]}), id="no job"),
        pytest.param(said(owners={"12": [1, True]}), id="no attempt"),
        pytest.param(said(owners={"-1": [1, 1]}), id="negative pid"),
        pytest.param(said(owners={str(2**22 + 1): [1, 1]}), id="pid of no process"),
        pytest.param(changed("gpus", "name", "\x1b[2J"), id="escape sequence"),
        pytest.param(changed("gpus", "uuid", "x" * 200), id="long name"),
        pytest.param(changed("gpus", "memory_total_bytes", 0), id="no memory"),
        pytest.param(changed("gpus", "color", "red"), id="unknown field"),
        pytest.param(changed("gpus", "available_until_s", -1.0), id="an end before 1970"),
        pytest.param(changed("gpus", "available_until_s", 1e300), id="an end that never comes"),
        pytest.param(changed("samples", "used_bytes", -1), id="negative memory"),
        pytest.param(changed("samples", "power_w", 1e300), id="huge power"),
        pytest.param(changed("samples", "used_bytes", "7"), id="text for a number"),
    ],
)
def test_a_reading_that_no_host_can_have_is_refused(message):
    with pytest.raises(MalformedMessage):
        reading_of(message, "n1")


@pytest.mark.parametrize(
    "line", [b"", b"{}", b"[]\n", b"x\n", b'{"a": NaN}\n', b"[" * 100_000 + b"\n"], ids=lambda line: repr(line[:8])
)
def test_a_line_that_is_no_object_is_refused(line):
    with pytest.raises(MalformedMessage):
        parsed(line)


def test_a_hello_needs_our_version_and_a_node():
    assert node_of({"say": "hello", "version": VERSION, "node": "n1"}) == "n1"
    for changes in ({"say": "sample"}, {"version": VERSION + 1}, {"node": ""}, {"node": "a\nb"}, {"node": "x" * 200}):
        with pytest.raises(MalformedMessage):
            node_of({"say": "hello", "version": VERSION, "node": "n1", **changes})


@pytest.mark.parametrize("value", [None, [1], [1, 2, 3], ["1", 1], [1.0, 1], [2**60, 1], {"job": 1}], ids=str)
def test_what_names_no_attempt_is_refused(value):
    with pytest.raises(MalformedMessage):
        ref_of(value)


@pytest.mark.parametrize("value", [None, "1", True, -1, 1e19, float("nan"), float("inf")], ids=str)
def test_what_no_host_means_is_no_number(value):
    assert not is_number(value)
