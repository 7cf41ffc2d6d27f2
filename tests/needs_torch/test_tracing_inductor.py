"""Code of `torch.compile`, traced as Inductor compiles it for the simulated GPU."""

from __future__ import annotations

import pytest

from traced_scripts import live_bytes, peak, traced

torch = pytest.importorskip("torch", reason="tracing needs torch")
VERSION = tuple(map(int, torch.__version__.split(".")[:2]))
pytestmark = pytest.mark.skipif(VERSION != (2, 13), reason="Inductor's functions are those of torch 2.13")

MIB = 2**20
CHAIN = """
    import torch

    class Chain(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.w = torch.nn.Parameter(torch.ones(1024, 1024))
            self.register_buffer("calls", torch.zeros(1))

        def forward(self, x):
            self.calls += 1
            x = x * self.w
            for _ in range(6):
                x = x.sin()
            return x

    model = Chain().cuda()
    x = torch.ones(1024, 1024, device="cuda")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    compiled = torch.compile(model)
    for _ in range(4):
        compiled(x).backward(x)
        optimizer.step()
        optimizer.zero_grad()
    assert model.state_dict()
"""


def test_a_pointwise_chain_is_one_kernel_that_saves_its_inputs(tmp_path):
    """Eagerly all seven inputs of 4 MiB are saved for backward; compiled, `x` and `w` are, which exist anyway."""
    eager = traced(tmp_path, CHAIN, compiled_code="eager")
    trace = traced(tmp_path, CHAIN, compiled_code="inductor")
    inputs, result, gradient = 8 * MIB, 4 * MIB, 4 * MIB
    assert inputs + 7 * 4 * MIB <= peak(eager) < inputs + 10 * 4 * MIB
    assert inputs + result + gradient <= peak(trace) < inputs + result + gradient + MIB
    assert [warning for warning in trace.warnings if "as Inductor compiles it" in warning] == list(trace.warnings)
    assert "compiled" in eager.header.runs_otherwise
    assert "compiled" not in trace.header.runs_otherwise


BREAKS = CHAIN.replace(
    "            return x", "            x = x + x.sum().item()\n            return x.sin().exp().sin()"
)


def test_a_graph_break_divides_the_graph(tmp_path):
    """The part after `.item()` saves its input, 4 MiB; eagerly each of the seven and of the three operators does."""
    eager = traced(tmp_path, BREAKS, compiled_code="eager")
    trace = traced(tmp_path, BREAKS, compiled_code="inductor")
    inputs, saved, result, gradient = 8 * MIB, 4 * MIB, 4 * MIB, 4 * MIB
    assert peak(eager) >= inputs + 10 * 4 * MIB
    assert inputs + saved + result <= peak(trace) < inputs + saved + result + 2 * gradient + MIB
    assert "compiled" not in trace.header.runs_otherwise, trace.warnings


STEP = """
    import torch

    model = torch.nn.ParameterList(torch.ones(1024, 1024) for _ in range(8)).cuda()
    optimizer = torch.optim.Adam(model.parameters(), foreach=True)
    {lines}
    for _ in range(4):
        for parameter in model:
            parameter.grad = torch.ones_like(parameter)
        step()
        optimizer.zero_grad()
    assert optimizer.state[model[0]]["exp_avg"].shape == (1024, 1024)
"""


@pytest.mark.parametrize(
    "lines",
    [
        pytest.param("step = torch.compile(optimizer.step)", id="a method"),
        pytest.param("step = torch.compile(lambda: optimizer.step())", id="a function that calls it"),
    ],
)
def test_a_compiled_step_holds_no_intermediate_results(tmp_path, lines):
    """Foreach Adam divides square roots of all states, 32 MiB; its kernels, compiled, hold nothing."""
    eager = traced(tmp_path, STEP.format(lines="step = optimizer.step"))
    trace = traced(tmp_path, STEP.format(lines=lines), compiled_code="inductor")
    states = 4 * 8 * 4 * MIB
    assert peak(eager) >= states + 8 * 4 * MIB
    assert states <= peak(trace) < states + MIB
    assert trace.header.steps == eager.header.steps
    assert "compiled" not in trace.header.runs_otherwise, trace.warnings


# All of it is compiled, with graph breaks where Dynamo has them.
COMPILED = """
    import torch
    from torch.utils.checkpoint import checkpoint

    class Base(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(256, 256)

    class Stores(Base):
        def forward(self, x):
            self.seen = [self.layer(x)]
            return self.seen[0] * 2

    class Decides(Base):
        def forward(self, x):
            return self.layer(x) if self.layer.weight.sum().item() < 1e9 else x

    class Checkpoints(Base):
        def forward(self, x):
            return checkpoint(self.drop, x, use_reentrant=False)

        def drop(self, x):
            return torch.nn.functional.dropout(self.layer(x), 0.5)

    class Answer:
        def __init__(self, logits):
            self.logits = logits

    class Wraps(Base):
        def forward(self, x):
            return Answer(self.layer(x))

    models = torch.nn.ModuleList([Stores(), Decides(), Checkpoints(), Wraps()]).cuda()
    stores, decides, checkpoints, wraps = models
    optimizer = torch.optim.SGD(models.parameters(), lr=0.1)

    @torch.compile
    def uses_a_global(x):
        return stores.layer(x)

    @torch.compile
    def double(x):
        return x * 2

    @torch.compile
    def twice(x):
        return double(double(x))

    @torch.compile
    def classes(x):
        return torch.nn.functional.one_hot(x.argmax(1), 256).sum()

    for _ in range(12):
        classes(torch.ones(8, 256, device="cuda"))
    compiled = [torch.compile(model) for model in models]
    sizes = iter(range(64, 64 + 20))
    for _ in range(4):
        x = torch.ones(8, 256, device="cuda")
        loss = sum(getattr(out, "logits", out).sum() for out in (model(x) for model in compiled))
        loss = loss + stores.seen[0].sum() + uses_a_global(x).sum() + twice(x).sum()
        for _ in range(3):
            double(torch.ones(next(sizes), device="cuda"))
        loss.backward()
        for model in models:
            assert model.layer.weight.grad is not None and model.layer.bias.grad is not None
        optimizer.step()
        optimizer.zero_grad()
"""


def test_what_dynamo_compiles_is_compiled(tmp_path):
    """Containers, values, checkpointing, objects, globals, lengths that vary, compiled functions in compiled ones."""
    trace = traced(tmp_path, COMPILED, compiled_code="inductor")
    assert not trace.partial
    assert "compiled" not in trace.header.runs_otherwise, trace.warnings
    *_, (_, left) = live_bytes(trace)
    assert left < 4 * 4 * 256 * 257 + 3 * MIB, "nothing of a compilation stays"


FLEX = """
    import torch
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    model = torch.nn.Linear(128, 3 * 128).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    @torch.compile
    def loss_of(x):
        documents = (x[0, :, 0] > 0).cumsum(0)
        def mask(b, h, query, key):
            return (query >= key) & (documents[query] == documents[key])
        q, k, v = model(x).view(1, 32768, 3, 2, 64).permute(2, 0, 3, 1, 4)
        blocks = create_block_mask(mask, None, None, 32768, 32768, device="cuda")
        return flex_attention(q, k, v, block_mask=blocks).sum()

    for _ in range(4):
        loss_of(torch.ones(1, 32768, 128, device="cuda")).backward()
        optimizer.step()
        optimizer.zero_grad()
"""


def test_templates_and_scans_are_generated(tmp_path):
    """`flex_attention` is a template, a long `cumsum` a split scan; one matrix of scores would be 8 GiB."""
    trace = traced(tmp_path, FLEX, compiled_code="inductor")
    assert "compiled" not in trace.header.runs_otherwise, trace.warnings
    assert peak(trace) < 256 * MIB


# `graphs` has those that were compiled so far. A trace ends at the third step: what follows the loop does not run.
COUNTING = """
    import torch
    import torch._inductor.compile_fx as compiler

    graphs, original = [], compiler.compile_fx
    def compile_fx(graph, *args, **options):
        graphs.append(graph)
        return original(graph, *args, **options)
    compiler.compile_fx = compile_fx
"""
BUCKETS = """
    import os

    class Scaled(torch.nn.Linear):
        def __init__(self):
            super().__init__(8, 8)

        def forward(self, x, by):
            return super().forward(x) * by

    torch.distributed.init_process_group("nccl")
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    model = torch.nn.Sequential(*(torch.nn.Linear(1024, 1024, bias=False) for _ in range(4))).cuda()
    wrapped = torch.nn.parallel.DistributedDataParallel(torch.compile(model), bucket_cap_mb=8)
    scaled = torch.nn.parallel.DistributedDataParallel(Scaled().cuda(), device_ids=[0])
    assert scaled(torch.ones(2, 8), by=torch.tensor(2.0)).device.index == 0
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(4):
        wrapped(torch.ones(8, 1024, device="cuda")).sum().backward()
        # The last layer fills the first bucket, of 1 MiB; the others have 8 MiB.
        assert [len(graph.graph.find_nodes(op="placeholder")) - 1 for graph in graphs] == [1, 2, 1], graphs
        optimizer.step()
        optimizer.zero_grad()
"""


def test_ddp_divides_the_graph_by_its_buckets(tmp_path):
    trace = traced(
        tmp_path, COUNTING + BUCKETS, compiled_code="inductor", launcher=["torchrun", "--nproc-per-node", "2"]
    )
    assert "compiled" not in trace.header.runs_otherwise, trace.warnings


COLLECTIVES = """
    import torch.distributed as dist

    torch.cuda.set_device(0)
    dist.init_process_group("nccl")
    model = torch.nn.Linear(1024, 1024, bias=False).cuda()

    @torch.compile
    @torch.no_grad()
    def update(weight, gradient):
        mean = gradient * 2
        dist.all_reduce(mean, op=dist.ReduceOp.AVG, async_op={is_async}){wait}
        weight.add_(mean.mul(-0.1).sin_())

    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(4):
        model(torch.ones(8, 1024, device="cuda")).sum().backward()
        update(model.weight, model.weight.grad)
        assert len(graphs) == {graphs}, len(graphs)
        optimizer.step()
        optimizer.zero_grad()
"""


@pytest.mark.parametrize(
    "words",
    [
        pytest.param({"is_async": False, "wait": "", "graphs": 1}, id="its functional one"),
        pytest.param({"is_async": True, "wait": ".wait()", "graphs": 2}, id="a graph break"),
    ],
)
def test_collectives_in_compiled_code(tmp_path, words):
    launcher = ["torchrun", "--nproc-per-node", "2"]
    trace = traced(tmp_path, COUNTING + COLLECTIVES.format(**words), compiled_code="inductor", launcher=launcher)
    assert not trace.partial, trace.warnings
    assert "compiled" not in trace.header.runs_otherwise, trace.warnings


EAGER = """
    import torch
    import torch._inductor.compile_fx

    model = torch.nn.Linear(256, 256).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    {lines}
    for _ in range(4):
        loss = compiled(torch.ones(8, 256, device="cuda"))
        loss.backward()
        assert model.weight.grad is not None
        optimizer.step()
        optimizer.zero_grad()
"""
FAILS = """
    def compile_fx(*args, **options): raise ArithmeticError("no such kernel")
    torch._inductor.compile_fx.compile_fx = compile_fx
    compiled = torch.compile(lambda x: model(x).sum())
"""
TOO_OFTEN = """
    @torch.compile(dynamic=False)
    def scaled(x, by): return x * by
    def compiled(x): return sum(scaled(model(x[:, :]), number).sum() for number in range(12))
"""


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        pytest.param(FAILS, "since ArithmeticError: no such kernel", id="a compiler that fails"),
        pytest.param(TOO_OFTEN, "since `scaled` was compiled too often", id="more kinds of arguments than 8"),
    ],
)
def test_what_is_not_compiled_runs_eagerly_and_says_why(tmp_path, lines, words):
    trace = traced(tmp_path, EAGER.format(lines=lines), compiled_code="inductor")
    assert not trace.partial
    assert "compiled" in trace.header.runs_otherwise
    assert any(words in warning for warning in trace.warnings), trace.warnings


ATTRIBUTES = """
    import torch

    class Cached(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(256, 256)
            self.cos = self.aux = None

        def forward(self, x):
            if self.cos is None:
                self.cos = torch.arange(256, device=x.device).float().cos()
            x = self.layer(x * self.cos)
            self.aux = x.square().mean()
            return x.sin()

    model = Cached().cuda()
    model.compile()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(4):
        out = model(torch.ones(8, 256, device="cuda"))
        assert type(model.cos) is type(out) and model.cos.shape == (256,)
        (out.sum() + model.aux).backward()
        assert model.layer.weight.grad.shape == (256, 256)
        optimizer.step()
        optimizer.zero_grad()
"""


def test_tensors_in_attributes_are_cached_and_returned(tmp_path):
    """A cache that the first call makes, and a loss that every call leaves behind; the module is compiled in place."""
    trace = traced(tmp_path, ATTRIBUTES, compiled_code="inductor")
    assert not trace.partial
    assert "compiled" not in trace.header.runs_otherwise, trace.warnings


REGIONAL = """

    class Block(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(256, 256)

        def forward(self, x):
            return x + self.layer(x).sin()

    model = torch.nn.Sequential(*(Block() for _ in range(12))).cuda()
    for block in model:
        {line}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(4):
        model(torch.ones(8, 256, device="cuda")).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        # The first block's input needs no gradient.
        assert len(graphs) == 2, len(graphs)
"""


@pytest.mark.parametrize(
    "line",
    [
        pytest.param("block.compile()", id="in place"),
        pytest.param("block.forward = torch.compile(block.forward, dynamic=False)", id="their forward passes"),
    ],
)
def test_blocks_with_the_same_code_are_compiled_once(tmp_path, line):
    """Of more than 8 compilations the others would run eagerly."""
    trace = traced(tmp_path, COUNTING + REGIONAL.format(line=line), compiled_code="inductor")
    assert not trace.partial
    assert "compiled" not in trace.header.runs_otherwise, trace.warnings


IN_AN_OPERATOR = """

    @torch.library.custom_op("script::product", mutates_args=())
    def product(x: torch.Tensor, scale: float) -> torch.Tensor:
        @torch.compile
        def scaled(x):
            return (x @ x.T) * scale
        return scaled(x)

    product.register_fake(lambda x, scale: x @ x.T)
    product.register_autograd(
        lambda ctx, grad: (grad @ ctx.saved_tensors[0], None),
        setup_context=lambda ctx, inputs, output: ctx.save_for_backward(inputs[0]),
    )
    model = torch.nn.Linear(64, 64).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(4):
        sum(product(model(torch.ones(8, 64, device="cuda")), 0.5).sum() for _ in range(10)).backward()
        optimizer.step()
        optimizer.zero_grad()
        assert len(graphs) == 1, len(graphs)
"""


def test_code_in_an_operator_of_the_script_is_compiled_once(tmp_path):
    """Its tensors have other dispatch keys there than outside; it runs eagerly after 8 compilations."""
    trace = traced(tmp_path, COUNTING + IN_AN_OPERATOR, compiled_code="inductor")
    assert not trace.partial, trace.warnings
    assert "compiled" not in trace.header.runs_otherwise, trace.warnings


HELD = """
    import gc, torch
    gc.disable()  # Dynamo leaves cycles
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    model = torch.nn.Linear(768, 768, bias=False).cuda().bfloat16()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    def near(b, h, row, column): return (row >= column) & (row - column < 128)
    left = []
    for _ in range(4):
        q = model(torch.ones(8, 1024, 768, device="cuda", dtype=torch.bfloat16)).view(8, 1024, 12, 64).transpose(1, 2)
        mask = create_block_mask(near, None, None, 1024, 1024, device="cuda")
        torch.compile(flex_attention)(q, q, q, block_mask=mask).float().sum().backward()
        del q, mask
        optimizer.step()
        optimizer.zero_grad()
        left.append(torch.cuda.memory_allocated())
        assert left[-1] == left[0], left
    """


def test_a_function_that_the_tracer_replaces_is_read_once(tmp_path):
    """Dynamo retains the tensors of the first call, which it reads, as on a GPU; those of a second call are freed."""
    trace = traced(tmp_path, HELD, compiled_code="inductor")
    assert not trace.partial, trace.warnings


RESIDUAL = """
    import torch
    {lines}
    model = torch.nn.ModuleList(torch.nn.Linear(256, 256) for _ in range(3)).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(4):
        x = torch.ones(1024, 256, device="cuda")
        for layer in model:
            x = x + layer(x.relu())
        x.sum().backward()
        optimizer.step()
        optimizer.zero_grad()
"""


def test_gradients_are_added_in_place_in_a_script_that_compiles(tmp_path):
    """Dynamo is around the dispatch mode from the first compiled call on, and autograd's engine calls both."""
    compiled = "torch.compile(torch.sin)(torch.ones(4, device='cuda'))"
    without, with_compiled = (
        traced(tmp_path, RESIDUAL.format(lines=lines), compiled_code="inductor") for lines in ("", compiled)
    )
    counts = [
        sum(event.action == "alloc" and event.bytes == MIB and event.phase == "backward" for event in trace.events)
        for trace in (without, with_compiled)
    ]
    assert counts[0] == counts[1] > 0


@pytest.mark.parametrize("constant", ["x.new_tensor(0.5)", "torch.tensor(0.5, device='cuda')"])
def test_constants_on_the_gpu_are_computed_on_the_cpu(tmp_path, constant):
    compiled = f"""
    import torch
    function = torch.compile(lambda x: x.sin().cos().sin() * {constant})
    layer = torch.nn.Linear(256, 256).cuda()
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    for _ in range(4):
        function(layer(torch.ones(1024, 256, device="cuda"))).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
"""
    trace = traced(tmp_path, compiled, compiled_code="inductor")
    assert "compiled" not in trace.header.runs_otherwise, trace.warnings
