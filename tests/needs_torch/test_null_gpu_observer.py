"""How a run on the null GPU is watched and answered, without the null GPU: on a CPU build of torch."""

from __future__ import annotations

import ctypes
import functools
import gc
from collections.abc import Callable

import pytest

torch = pytest.importorskip("torch", reason="watches optimizers of torch")

from cotenant.core.errors import TraceError  # noqa: E402 - needs torch
from cotenant.tracing.assumptions import booleans  # noqa: E402 - needs torch
from cotenant.tracing.cuda_build import unknown_values  # noqa: E402
from cotenant.tracing.cuda_build.epoch_end import epoch_patches  # noqa: E402
from cotenant.tracing.cuda_build.observer import CudaBuildObserver  # noqa: E402
from cotenant.tracing.patches.registry import PatchTable  # noqa: E402
from cotenant.tracing.process import garbage_collection  # noqa: E402


class Recorder:
    """What the values need of a session."""

    steps = 0

    def warn(self, sentence):
        raise AssertionError(sentence)


class Driver:
    """A driver that knows what the numbers at some addresses are."""

    def __init__(self, *known):
        self._known = {tensor.data_ptr() for tensor in known}

    null_foreign_launches = staticmethod(lambda: 0)

    def null_known(self, source, size, target):
        if source.value not in self._known:
            return 0
        ctypes.memmove(target.value, source.value, size.value)
        return 1


@pytest.fixture
def values(monkeypatch):
    def make(*known):
        monkeypatch.setattr(unknown_values, "null_driver", lambda: Driver(*known))
        return unknown_values.UnknownValues(Recorder())

    return make


@pytest.mark.parametrize(
    ("value", "wanted"),
    [
        pytest.param(torch.tensor(0.25), 1.0, id="a number"),
        pytest.param(torch.tensor(9), 1, id="an integer"),
        pytest.param(torch.tensor(True), False, id="a boolean"),
        pytest.param(torch.tensor(2j), 1 + 0j, id="complex"),
    ],
)
def test_unknown_values_are_assumed_and_their_lines_listed(values, value, wanted):
    found = values()
    read = found.read(value)  # outside of an `assert`, which is assumed to hold
    assert read == wanted
    assert [place.partition(",")[0] for place in found.places] == ["test_null_gpu_observer.py"]


def test_line_that_checks_whether_something_is_finite_gets_true(values):
    isfinite = values().read(torch.tensor(False))
    assert isfinite is True


@pytest.mark.parametrize(("checked", "wanted"), [(True, True), (False, False), ("likely", True), ("unlikely", False)])
def test_check_that_sound_values_pass_says_more_than_its_line(values, checked, wanted):
    not_finite = torch.tensor(False)
    booleans.assume(not_finite, checked)
    finite_or_not = values().read(not_finite)
    assert finite_or_not is wanted


def test_view_of_a_check_passes_with_it(values):
    passed = torch.zeros(2, 2, dtype=torch.bool)
    booleans.assume(passed, True)
    first_part = values().read(passed.view(-1)[0])
    assert first_part is True


@pytest.mark.parametrize("value", [torch.tensor(0.25), torch.tensor(9), torch.tensor(True)])
def test_no_gradient_overflows(values, value):
    overflow = values().read(value)
    assert overflow == 0


@pytest.mark.parametrize("value", [torch.tensor(0.25), torch.tensor(9), torch.tensor(True), torch.tensor(2j)])
def test_known_values_are_exact_and_not_listed(values, value):
    found = values(value)
    assert found.read(value) == value.item()
    assert found.places == {}


def test_gradient_scaler_finds_no_infinity(values, monkeypatch):
    found, scaler = values(), torch.amp.GradScaler("cpu")
    # Without a frame of this file between the scaler and the read.
    monkeypatch.setattr(torch.Tensor, "item", property(lambda self: functools.partial(found.read, self)))
    parameter = torch.nn.Parameter(torch.ones(3))
    optimizer = torch.optim.SGD([parameter], lr=0.1)
    scaler.scale(parameter.sum())  # makes the scale, with which `step` divides
    parameter.grad = torch.ones(3)
    scaler.step(optimizer)
    assert float(parameter.sum().detach().numpy()) < 3, "the optimizer stepped"
    assert found.places == {}


def test_driver_that_is_not_the_null_gpus_is_refused(monkeypatch):
    monkeypatch.setattr(ctypes, "CDLL", lambda name: ctypes.PyDLL(None))  # a library without our functions
    with pytest.raises(TraceError, match="the libraries of the null GPU were not loaded") as refused:
        unknown_values.null_driver()
    assert refused.value.kind == "unsupported"


@pytest.mark.parametrize(
    ("order", "finished_after"),
    [
        pytest.param("aaaa", 3, id="one optimizer"),
        pytest.param("abababab", 6, id="two in turn: the last step of the second"),
        pytest.param("aabaabaabaab", 9, id="one is rarer"),
        pytest.param("ab" + "a" * 20, 13, id="one that stops is not waited for"),
    ],
)
def test_run_ends_after_so_many_steps_of_each_optimizer(order, finished_after):
    class Finished(Exception):
        pass

    def finish():
        raise Finished

    observer = CudaBuildObserver(3, finish)
    optimizers = {name: torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.1) for name in "ab"}
    done = []

    def train():
        for name in order:
            observer.before_step(optimizers[name])
            done.append(name)
            observer.after_step(optimizers[name])

    with pytest.raises(Finished):
        train()
    assert len(done) == finished_after


def test_script_that_records_its_own_memory_history_leaves_the_one_that_answers(monkeypatch):
    recorded = []
    monkeypatch.setattr(torch.cuda.memory, "_record_memory_history", lambda *args, **_: recorded.append(args))
    observer = CudaBuildObserver(1, lambda: pytest.fail("finished"))
    monkeypatch.setattr(torch._C, "_cuda_emptyCache", lambda: None, raising=False)
    PatchTable(entry for entry in observer.patches() if "memory_history" in entry.target).apply()
    observer._record()
    torch.cuda.memory._record_memory_history(enabled=None)
    assert recorded == [("all",)]


@pytest.mark.parametrize(
    ("counts", "steps"), [pytest.param(True, 1, id="of an engine"), pytest.param(False, 0, id="states")]
)
def test_steps_in_parts_count_as_one_or_as_none(counts, steps):
    observer = CudaBuildObserver(2, lambda: pytest.fail("finished"))
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.1)
    with observer.step_in_parts(optimizer, counts=counts):
        for _ in range(20):
            observer.before_step(optimizer)
            observer.after_step(optimizer)
    assert observer.steps == steps


def test_step_that_an_engine_skips_is_none():
    observer = CudaBuildObserver(1, lambda: pytest.fail("finished"))
    with observer.step_in_parts(torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.1), counts=True):
        pass  # gradients overflow, by what it read
    assert observer.steps == 0


TRAINING = """
import torch
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
step = 0
def validate():
    model(torch.ones(8, 4))
while True:
    before_validation
    model(torch.ones(2, 4))
    progress.backward_begins()
    progress.step_begins(optimizer)
    progress.step_ends(optimizer)
    step += 1
    after_validation
"""


class Finished(Exception):
    """Enough steps were taken."""


@pytest.mark.parametrize(
    ("before", "after", "steps", "warned"),
    [
        pytest.param("pass", "pass", 3, False, id="no validation"),
        pytest.param("pass", "if step % 7 == 0: validate()", 8, False, id="a step later, so that it has run"),
        pytest.param("if step % 7 == 6: validate()", "pass", 7, False, id="before the step"),
        pytest.param("if step % 100 == 0: validate()", "pass", 3, False, id="it has run in the first round"),
        pytest.param("pass", "if step % 100 == 0: validate()", 3, True, id="too late to wait for"),
        pytest.param("pass", "if step % 3 == 0: validate()", 4, False, id="that of the last step"),
    ],
)
def test_work_every_few_steps_is_awaited_by_its_condition(tmp_path, before, after, steps, warned):
    def finish():
        raise Finished

    observer = CudaBuildObserver(3, finish)
    script = tmp_path / "train.py"
    script.write_text(TRAINING.replace("before_validation", before).replace("after_validation", after))
    with pytest.raises(Finished):
        exec(compile(script.read_text(), str(script), "exec"), {"progress": observer.progress})
    observer.progress.conditional_work.warn()
    assert observer.steps == steps
    assert ([text for text in observer.warnings if "runs only after the traced steps" in text] != []) == warned


def test_last_batch_that_cannot_be_read_here_is_a_full_one_and_named():
    """As of a data set that only a worker can read."""

    class Numbers(torch.utils.data.Dataset):
        def __len__(self):
            return 10

        def __getitem__(self, index):
            if progress.ending_epoch:
                raise OSError("not opened")
            return torch.ones(1)

    observer = CudaBuildObserver(1, lambda: pytest.fail("finished"))
    progress = observer.progress
    (patch, *_) = epoch_patches(progress)
    loader = torch.utils.data.DataLoader(Numbers(), batch_size=4)
    batches = patch.replacement(lambda loader: iter([torch.ones(4, 1)] * 3))(loader)
    assert [len(next(batches)) for _ in range(2)] == [4, 4]
    assert next(batches, None) is None
    assert list(observer.warnings) == [
        "the last batch of an epoch, of 2 samples, is not included: reading it raised OSError: not opened"
    ]


def test_live_bytes_leave_out_the_rest_of_larger_blocks(monkeypatch):
    stats = {"allocated_bytes.all.current": 3 << 20, "requested_bytes.all.current": 2 << 20}
    monkeypatch.setattr(torch.cuda, "memory_stats", lambda: stats)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda: 3 << 20)
    observer = CudaBuildObserver(3, lambda: None)
    assert observer.live_bytes == {}
    observer.is_recording = True
    assert observer.live_bytes == {0: 2 << 20}


def test_garbage_is_collected_as_usual_once_a_script_uses_the_gpu(monkeypatch):
    uses: list[Callable[[], object]] = []
    monkeypatch.setattr(torch.cuda, "_lazy_call", uses.append)
    monkeypatch.setattr(torch.cuda.memory, "_record_memory_history", lambda *_, **__: None)
    usual = gc.get_threshold()
    garbage_collection.collect_rarely()
    try:
        CudaBuildObserver(2, lambda: None).start()
        rarely = gc.get_threshold()
        uses[0]()
        assert rarely[:2] != usual[:2] == gc.get_threshold()[:2]
    finally:
        gc.set_threshold(*usual)
