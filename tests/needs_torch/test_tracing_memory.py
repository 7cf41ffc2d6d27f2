"""Traced bytes against bytes counted by hand. Sizes are in bytes; every value has four unless half precision is on."""

from __future__ import annotations

import pytest

from traced_scripts import allocations, by_category, live_bytes, peak, traced

pytest.importorskip("torch", reason="tracing needs torch")

MLP = """
import torch
from torch import nn
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 8)){after_model}
optimizer = {optimizer}
model.to("cuda")
for _ in range(5):
    x = torch.randn(4, 16).cuda()
    y = torch.zeros(4, dtype=torch.long).cuda()
    out = model(x)
    loss = nn.functional.cross_entropy(out, y)
    optimizer.zero_grad({zero_grad})
    loss.backward()
    optimizer.step()
    del out
"""
WEIGHTS = 4 * (16 * 32 + 32 + 32 * 8 + 8)
BIGGEST = 4 * 16 * 32
BATCH = 4 * 4 * 16 + 8 * 4  # x and y
RESULTS = 4 * 4 * 8 + 4  # out and loss


def mlp(optimizer="torch.optim.Adam(model.parameters())", *, zero_grad="", after_model=""):
    return MLP.format(optimizer=optimizer, zero_grad=zero_grad, after_model=after_model)


@pytest.mark.parametrize(
    ("optimizer", "copies", "scratch"),  # of all weights: gradients and states; in the step itself: bytes
    [
        pytest.param("torch.optim.SGD(model.parameters(), lr=0.1)", 1, 0, id="sgd"),
        pytest.param("torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)", 2, 0, id="momentum"),
        pytest.param("torch.optim.Adam(model.parameters())", 3, WEIGHTS, id="adam: square roots of all, by foreach"),
        pytest.param("torch.optim.Adam(model.parameters(), fused=True)", 3, 16, id="fused: no scratch, four counters"),
        pytest.param(
            "torch.optim.Adam(model.parameters(), foreach=False)",
            3,
            2 * BIGGEST,
            id="for-loop: root and quotient of one",
        ),
    ],
)
def test_the_peak_of_a_step_matches_a_hand_calculation(tmp_path, optimizer, copies, scratch):
    trace = traced(tmp_path, mlp(optimizer))
    assert peak(trace, "step") == WEIGHTS * (1 + copies) + scratch + BATCH + RESULTS


def test_capturable_counters_are_on_the_gpu(tmp_path):
    trace = traced(tmp_path, mlp("torch.optim.Adam(model.parameters(), capturable=True)"))
    assert by_category(trace)["optimizer state"] == 2 * WEIGHTS + 4 * 4


def test_bytes_by_category_match_a_hand_calculation(tmp_path):
    totals = by_category(traced(tmp_path, mlp()))
    assert totals["parameter"] == WEIGHTS
    assert totals["optimizer state"] == 2 * WEIGHTS
    assert totals["gradient"] == 3 * WEIGHTS  # freed by `zero_grad` and made anew in each of three steps
    assert totals["input"] == 3 * BATCH
    assert totals["activation"] >= 3 * 4 * 4 * 32  # the first layer's result is kept for backward


def test_optimizer_made_before_the_model_moves_gets_states(tmp_path):
    # MLP makes the optimizer first. Were the parameters replaced, it would step over none and have no states.
    trace = traced(tmp_path, mlp())
    assert len(allocations(trace, "step", "optimizer state")) == 2 * 4


def test_zeroed_gradients_are_live_in_the_next_forward(tmp_path):
    retained = traced(tmp_path, mlp(zero_grad="set_to_none=False"))
    assert len(allocations(retained, category="gradient")) == 4  # made once

    def after_zero_grad(trace):  # the first backward of the second step
        steps = [total for event, total in live_bytes(trace) if event.action == "phase" and event.phase == "backward"]
        return steps[1]

    freed = traced(tmp_path, mlp())
    assert after_zero_grad(retained) - after_zero_grad(freed) == WEIGHTS


def test_tied_weights_stay_tied(tmp_path):
    tied = traced(
        tmp_path,
        """
        import torch
        from torch import nn
        class Model(nn.Module):
            def __init__(self):
                super().__init__()
                self.words, self.head = nn.Embedding(100, 8), nn.Linear(8, 100, bias=False)
                self.head.weight = self.words.weight
            def forward(self, ids):
                return self.head(self.words(ids))
        model = Model().cuda()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(3):
            model(torch.zeros(2, 3, dtype=torch.long).cuda()).sum().backward()
            optimizer.step()
        assert model.head.weight is model.words.weight
        """,
    )
    assert allocations(tied, category="parameter") == [4 * 100 * 8]


SUMS = """
import torch
w = torch.nn.Parameter(torch.randn(64, 64).cuda())
optimizer = torch.optim.SGD([w], lr=0.1)
retained = []
for _ in range(3):
    h = w * 2
    a, b = h * 3, h * 5
    {hook}
    (a + b).backward(torch.ones(64, 64).cuda())  # `b` comes first, being the younger
    del a, b, h
    optimizer.step()
    optimizer.zero_grad()
"""


@pytest.mark.parametrize(
    ("hook", "in_backward"),
    [
        # d(h * 3), d(h * 5), their sum in place of the first, d(w * 2)
        pytest.param("", 3, id="in place where nobody else holds the first gradient"),
        pytest.param("b.grad_fn.register_hook(lambda into, out: retained.append(into))", 4, id="shared"),
    ],
)
def test_gradients_of_a_shared_tensor_are_accumulated(tmp_path, hook, in_backward):
    trace = traced(tmp_path, SUMS.format(hook=hook), steps=1)
    assert allocations(trace, "backward").count(4 * 64 * 64) == in_backward


def test_accumulated_gradients_are_added_in_place(tmp_path):
    trace = traced(
        tmp_path,
        """
        import torch
        model = torch.nn.Linear(64, 64, bias=False).cuda()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(2):
            for _ in range(3):
                model(torch.randn(2, 64).cuda()).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        """,
        steps=2,
    )
    square = 4 * 64 * 64
    assert allocations(trace, category="gradient") == [square, square]
    # beside weights and gradient, one more while a new gradient is added
    assert square * 3 <= peak(trace, "backward") < square * 3 + 4096


def test_dropout_saves_one_byte_per_element(tmp_path):
    trace = traced(
        tmp_path,
        """
        import torch
        x = torch.nn.Parameter(torch.randn(1000).cuda())
        optimizer = torch.optim.SGD([x], lr=0.1)
        y = torch.nn.functional.dropout(x, 0.5)
        y.sum().backward()
        optimizer.step()
        """,
    )
    assert allocations(trace)[1:3] == [1000, 4000]  # CUDA makes the mask first


AMP = """
import torch
from torch import nn
model = nn.Sequential(nn.Linear(64, 128), nn.Linear(128, 32)).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cuda", enabled={scaled})
for step in range(3):
    with torch.autocast("cuda", dtype=torch.{dtype}):
        out = model(torch.randn(8, 64).cuda())
        assert out.dtype is torch.{dtype}
        loss = out.float().square().mean()
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
"""


@pytest.mark.parametrize(("dtype", "scaled"), [("float16", True), ("bfloat16", False)])
def test_autocast_caches_half_precision_weights(tmp_path, dtype, scaled):
    trace = traced(tmp_path, AMP.format(dtype=dtype, scaled=scaled))
    assert trace.header.steps == 3  # a scaler that saw an overflow would not have stepped
    forward = allocations(trace, "forward")
    assert forward.count(2 * 64 * 128) == 3
    assert forward.count(2 * 128 * 32) == 3
    assert {op.params["dtype"] for op in trace.ops if op.kind.startswith("gemm")} == {dtype}


BLOCKS = """
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
layers = lambda: nn.Sequential(nn.Linear(32, 32, bias=False), nn.Sigmoid(), nn.Sigmoid())
blocks = nn.ModuleList(layers() for _ in range(6)).cuda()
optimizer = torch.optim.SGD(blocks.parameters(), lr=0.1)
x = torch.randn(1024, 32).cuda()
for _ in range(3):
    h = x
    for block in blocks:
        h = {call}
    h.backward(x)
    del h
    optimizer.step()
    optimizer.zero_grad()
"""
ROWS = 4 * 1024 * 32


def test_checkpointing_saves_only_the_inputs_of_blocks(tmp_path):
    def peaks(call):
        trace = traced(tmp_path, BLOCKS.format(call=call))
        return peak(trace, "forward") // ROWS, peak(trace, "backward") // ROWS  # the weights are a fraction of one

    # x, the two results of each block that are kept for backward; in backward a gradient and the one it comes from
    assert peaks("block(h)") == (1 + 6 * 2, 1 + 6 * 2 + 2)
    # x, what enters each block but the first, and inside the last two more; in backward that block's two results again
    assert peaks("checkpoint(block, h, use_reentrant=False)") == (1 + 5 + 2, 1 + 6 + 2 + 1)
    # the first block is no checkpoint, since its input needs no gradient: one more is kept
    reentrant = peaks("checkpoint(block, h, use_reentrant=True) if h.requires_grad else block(h)")
    assert reentrant == (1 + 1 + 5 + 2, 1 + 1 + 6 + 2 + 2)


def test_phases_are_in_the_order_of_a_step(tmp_path):
    trace = traced(tmp_path, mlp())
    phases = [event.phase for event in trace.events if event.action == "phase"]
    assert phases == ["forward", "backward", "forward", "step"] * 3 + ["forward"]


def test_events_have_the_dotted_names_of_modules(tmp_path):
    trace = traced(tmp_path, mlp())
    named = {event.module for event in trace.events if event.action == "alloc" and event.phase == "forward"}
    assert {"0", "1", "2"} <= named


def test_channels_last_and_determinism_are_recorded_with_the_convolution(tmp_path):
    source = """
    import torch
    model = torch.nn.Conv2d(3, 8, 3, padding=1).cuda(){layout}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x = torch.randn(2, 3, 16, 16).cuda(){layout}
    out = model(x)
    assert out.is_contiguous(memory_format=torch.{expected})
    torch.use_deterministic_algorithms(True)
    out.sum().backward()
    optimizer.step()
    """
    plain = traced(tmp_path, source.format(layout="", expected="contiguous_format"))
    last = traced(tmp_path, source.format(layout=".to(memory_format=torch.channels_last)", expected="channels_last"))
    for trace, expected in ((plain, False), (last, True)):
        ops = [op for op in trace.ops if op.kind.startswith("conv")]
        assert {op.kind for op in ops} == {"conv_forward", "conv_wgrad"}  # the image needs no gradient
        assert all(op.params["channels_last"] is expected for op in ops)
        assert [op.params["deterministic"] for op in ops] == [False, True]
        assert ops[0].params["x"] == (2, 3, 16, 16)


def test_a_larger_validation_batch_is_traced(tmp_path):
    trace = traced(
        tmp_path,
        """
        import torch
        from torch.utils.data import DataLoader, TensorDataset
        data = TensorDataset(torch.randn(640, 16))
        model = torch.nn.Linear(16, 16).cuda()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for epoch in range(10):
            for (x,) in DataLoader(data, batch_size=8):
                optimizer.zero_grad()
                model(x.cuda()).sum().backward()
                optimizer.step()
            with torch.no_grad():
                for (x,) in DataLoader(data, batch_size=320):
                    model(x.cuda())
        """,
    )
    assert trace.header.steps == 3
    assert 4 * 320 * 16 in allocations(trace)


def test_an_epoch_ends_with_its_last_batch_and_validation(tmp_path):
    trace = traced(
        tmp_path,
        """
        import torch
        from torch.utils.data import DataLoader, TensorDataset
        model = torch.nn.Linear(16, 16).cuda()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for epoch in range(10):
            for (x,) in DataLoader(TensorDataset(torch.randn(83, 16)), batch_size=8):
                model(x.cuda()).sum().backward()
                optimizer.step()
            with torch.no_grad():
                for (x,) in DataLoader(TensorDataset(torch.randn(105, 16)), batch_size=10):
                    model(x.cuda())
        """,
    )
    rows = [nbytes // (4 * 16) for nbytes in allocations(trace, category="input")]
    assert rows == [8, 8, 3, 10, 5, 8]  # the last one begins the next epoch, which ends the trace


def test_storages_have_the_stream_of_their_allocation(tmp_path):
    trace = traced(
        tmp_path,
        """
        import torch
        model = torch.nn.Linear(16, 16).cuda()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        side = torch.cuda.Stream()
        with torch.cuda.stream(side):
            x = torch.empty(1000, device="cuda")
        model(torch.randn(2, 16).cuda()).sum().backward()
        torch.cuda.empty_cache()
        optimizer.step()
        """,
    )
    streams = {event.stream for event in trace.events if event.action == "alloc" and event.bytes == 4000}
    assert len(streams) == 1
    assert 0 not in streams
    assert [event.action for event in trace.events].count("empty_cache") == 1


@pytest.mark.parametrize("around", ["torch.enable_grad()", "torch.no_grad()", "torch.inference_mode()"])
@pytest.mark.parametrize("lead", ["", ".transpose(0, 1)"], ids=["contiguous", "transposed"])
def test_adding_a_bias_allocates_no_second_result(tmp_path, around, lead):
    lines = (
        f"\nwith {around}:\n    sequence = torch.randn(7, 3, 32).cuda(){lead}\n    nn.Linear(32, 1000).cuda()(sequence)"
    )
    trace = traced(tmp_path, mlp(after_model=lines))
    assert allocations(trace).count(4 * 7 * 3 * 1000) == 1


def test_inference_mode_divides_operators_as_on_a_gpu(tmp_path):
    lines = """
with torch.inference_mode():
    x = torch.ones(1, 7, 5, 11, device="cuda")
    same, large = nn.functional.dropout(x, 0.0), nn.functional.interpolate(x, scale_factor=3)
"""
    found = allocations(traced(tmp_path, mlp(after_model=lines)))
    # PyTorch's functions in Python copy what drops nothing, and interpolate by indices.
    at = found.index(4 * 7 * 5 * 11)
    assert found[at + 1] == 9 * 4 * 7 * 5 * 11
    assert found.count(4 * 7 * 5 * 11) == 1
