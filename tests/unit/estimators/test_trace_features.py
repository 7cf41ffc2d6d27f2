"""Features of a script for published estimators, from hand-made traces."""

from __future__ import annotations

import pytest

from cotenant.core.trace import LibraryCall, MemoryEvent, MemoryTrace, TraceHeader
from cotenant.estimators.trace_features import batch_option, features_of, first_backward_end, live_peak


class Script:
    """Writes events as the tracer does: allocations by name, phases, library calls."""

    def __init__(self) -> None:
        self.events: list[MemoryEvent] = []
        self.ops: list[LibraryCall] = []
        self.phase = "load"
        self.numbers: dict[str, int] = {}
        self.next = 0

    def enter(self, phase):
        self.phase = phase
        self.events.append(MemoryEvent("phase", -1, 0, "", phase, "", 0, 0))

    def alloc(self, name, nbytes, module="", category="temporary", device=0):
        self.numbers[name] = self.next
        self.events.append(MemoryEvent("alloc", self.next, nbytes, category, self.phase, module, 0, device))
        self.next += 1

    def free(self, *names):
        for name in names:
            self.events.append(MemoryEvent("free", self.numbers.pop(name), 0, "", self.phase, "", 0, 0))

    def op(self, kind, module, **params):
        self.ops.append(LibraryCall(kind=kind, thread="main", params=params))
        self.events.append(MemoryEvent("op", -1, 0, "", self.phase, module, 0, 0, len(self.ops) - 1))

    def trace(self, **header):
        return MemoryTrace(
            events=tuple(self.events),
            ops=tuple(self.ops),
            header=TraceHeader(torch_version="2.13.0", steps=2, **header),
        )


def training(*, steps=2, trial=True, dtype="float32", input_bytes=300, hidden=800, out=80):
    """Two linear layers under Adam: 4000 and 400 bytes of weights, 40 of a buffer."""
    script = Script()
    script.alloc("w1", 4000, category="parameter")
    script.alloc("w2", 400, category="parameter")
    script.alloc("stat", 40, category="buffer")
    script.alloc("elsewhere", 7000, category="parameter", device=1)
    script.enter("forward")
    if trial:
        script.alloc("trial", 99999, module="body.0")
        script.alloc("trial out", 9999, module="head")
        script.free("trial", "trial out")
    for step in range(steps):
        script.alloc("x", input_bytes)
        script.alloc("h", hidden, module="body.0", category="activation")
        script.op("gemm", "body.0", dtype=dtype)
        script.alloc("scratch", 5000, module="body.1")
        script.alloc("mask", hidden // 4, module="body.1", category="activation")
        script.alloc("d", hidden, module="body.1", category="activation")
        script.free("scratch")
        script.alloc("sum", hidden, module="body", category="activation")
        script.alloc("y", out, module="head", category="activation")
        script.op("gemm", "head", dtype=dtype)
        script.alloc("loss", 4)
        script.enter("backward")
        script.alloc("g2", 400, category="gradient")
        script.alloc("g1", 4000, category="gradient")
        script.free("h", "mask", "d", "sum", "y")
        script.enter("forward")
        script.enter("step")
        if step == 0:
            for name, size in (("m1", 4000), ("m2", 400), ("v1", 4000), ("v2", 400)):
                script.alloc(name, size, category="optimizer state")
        script.enter("forward")
        script.free("g1", "g2", "loss", "x")
    return script


def test_tensors_of_the_first_step_are_counted_once():
    found = features_of(training().trace())
    assert found.parameter_bytes == (4000, 400)
    assert sorted(found.gradient_bytes) == [400, 4000]
    assert sorted(found.state_bytes) == [400, 400, 4000, 4000]
    assert (found.buffer_bytes, found.weight_bytes, found.parameters) == (40, 4400, 1100)


@pytest.mark.parametrize("steps", [1, 2, 3])
def test_layers_are_those_of_one_forward_pass(steps):
    found = features_of(training(steps=steps, trial=False).trace())
    assert found.input_bytes == 300
    # What the module freed before the next began is gone: `scratch`.
    assert [(layer.module, layer.saved_bytes, layer.leaf) for layer in found.layers] == [
        ("body.0", (800,), True),
        ("body.1", (200, 800), True),
        ("body", (800,), False),
        ("head", (80,), True),
        ("", (4,), False),
    ]


def test_a_trial_run_before_the_first_step_is_no_layer():
    assert 99999 not in [layer.output_bytes for layer in features_of(training().trace()).layers]


def test_a_model_of_one_module_is_its_layer():
    script = Script()
    script.enter("forward")
    script.alloc("y", 64)
    script.enter("backward")
    (layer,) = features_of(script.trace()).layers
    assert (layer.leaf, layer.output_bytes) == (True, 64)


@pytest.mark.parametrize(
    ("dtype", "copies", "item_bytes"),
    [
        pytest.param("float32", False, 4, id="single"),
        pytest.param("float64", False, 8, id="double"),
        pytest.param("bfloat16", False, 2, id="half weights"),
        pytest.param("float16", True, 4, id="autocast copies most weights"),
    ],
)
def test_parameters_have_the_bytes_of_their_dtype(dtype, copies, item_bytes):
    script = training(dtype=dtype, steps=1, trial=False)
    if copies:
        at = next(i for i, event in enumerate(script.events) if event.module == "body.0")
        cast = MemoryEvent("alloc", 1000, 2000, "temporary", "forward", "body.0", 0, 0)
        script.events.insert(at, cast)
    assert features_of(script.trace()).item_bytes == item_bytes


def test_the_batch_comes_from_the_first_convolution():
    script = training(steps=1, trial=False)
    at = next(i for i, event in enumerate(script.events) if event.module == "body.0")
    script.op("conv_forward", "body.0", dtype="float32", x=(16, 3, 8, 8))
    script.events.insert(at, script.events.pop())
    assert features_of(script.trace(), ("t.py", "--batch-size", "7")).batch == 16


@pytest.mark.parametrize(
    ("command", "batch"),
    [
        pytest.param("t.py --batch-size 32", 32, id="two words"),
        pytest.param("t.py --batch_size=8", 8, id="one word"),
        pytest.param("t.py --per_device_train_batch_size 4 --lr 1", 4, id="as Trainer has it"),
        pytest.param("t.py -b 128", 128, id="short"),
        pytest.param("t.py --bs 5", 5, id="shorter"),
        pytest.param("t.py --eval-batch-size 9", None, id="another batch"),
        pytest.param("t.py --batch-size-test 9", None, id="yet another"),
        pytest.param("t.py --batch-size", None, id="no value"),
        pytest.param("t.py --batch-size many", None, id="no number"),
        pytest.param("t.py --batch-size 0", None, id="nothing"),
        pytest.param("t.py", None, id="no option"),
    ],
)
def test_the_batch_size_is_read_from_the_command(command, batch):
    assert batch_option(command.split()) == batch
    assert features_of(training().trace(), command.split()).batch == batch


def test_the_number_of_gpus_is_read():
    assert features_of(training().trace(gpus=4)).devices == 4
    assert features_of(training().trace()).devices == 1


def test_the_peak_counts_live_storages_only():
    script = Script()
    script.alloc("a", 100, category="parameter")
    script.alloc("b", 50, category="activation")
    script.free("b")
    script.alloc("c", 60, category="gradient")
    script.alloc("elsewhere", 1000, device=1)
    assert live_peak(script.events) == (160, {"parameter": 100, "gradient": 60})


def test_each_storage_is_rounded_up():
    script = Script()
    script.alloc("a", 1, category="parameter")
    script.alloc("b", 513, category="parameter")
    assert live_peak(script.events, granule_bytes=512) == (1536, {"parameter": 1536})


def test_first_backward_ends_where_another_phase_begins():
    events = training(trial=False).events
    end = first_backward_end(events)
    assert [event.phase for event in events[end - 1 : end + 1]] == ["backward", "forward"]
    assert first_backward_end(events[: end - 1]) == end - 1
