"""Layers, operators and torch features that scripts use on a GPU are traced without one."""

from __future__ import annotations

import importlib.util

import pytest

from traced_scripts import allocations, by_category, failing, peak, traced

torch = pytest.importorskip("torch", reason="tracing needs torch")

MiB = 2**20
HEAD = "import torch\nfrom torch import nn\n"
LOOP = """
for _ in range(4):
    loss = model({x}).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""
SGD = "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"


@pytest.mark.parametrize(
    "move",
    [
        pytest.param(".to('cuda')", id="moved before"),
        pytest.param(".cuda().half().float()", id="and changed"),
        pytest.param("", id="made there"),
    ],
)
def test_lazy_layers_are_materialized_on_the_gpu(tmp_path, move):
    lazy = "nn.LazyConv2d(8, 3{d}), nn.LazyBatchNorm2d({e}), nn.Flatten(), nn.LazyLinear(10{d})"
    device = ", device='cuda'" if not move else ""
    source = HEAD + f"model = nn.Sequential({lazy.format(d=device, e=device[2:])}){move}\n"
    source += "first = list(model.parameters())\noptimizer = torch.optim.Adam(first)\n"
    source += (
        "assert all(part.is_cuda and part.device.type == 'cuda' for part in first) and model[1].running_var.is_cuda\n"
    )
    source += "assert not nn.LazyLinear(1).weight.is_cuda and nn.LazyLinear(1).weight.device == torch.device('cpu')\n"
    source += "model(torch.randn(2, 3, 8, 8, device='cuda'))\n"
    source += "assert all(a is b for a, b in zip(first, model.parameters())) and model[3].weight.is_cuda\n"
    source += "assert isinstance(model[0].weight, nn.Parameter) and not model[1].running_mean.requires_grad\n"
    trace = traced(tmp_path, source + LOOP.format(x="torch.randn(2, 3, 8, 8, device='cuda')"))
    weights = [4 * numel for numel in (8 * 3 * 9, 8, 8, 8, 10 * 288, 10)]
    assert by_category(trace)["optimizer state"] == 2 * sum(weights)
    assert [nbytes for nbytes in allocations(trace) if nbytes == weights[4]]  # never moved as a whole


@pytest.mark.parametrize("length", ["torch.tensor([9, 7])", "torch.tensor([9, 7]).cuda()", "(9, 7)"])
def test_ctc_loss_accepts_lengths_on_the_cpu(tmp_path, length):
    source = HEAD + "model = nn.Linear(16, 5).cuda()\n" + SGD
    source += f"""
for _ in range(3):
    scores = model(torch.randn(12, 2, 16, device="cuda")).log_softmax(-1)
    steps = (12, 12) if isinstance({length}, tuple) else torch.tensor([12, 12])
    loss = nn.CTCLoss()(scores, torch.ones(2, 9, dtype=torch.long, device="cuda"), steps, {length})
    loss.backward()
    optimizer.step()
"""
    trace = traced(tmp_path, source)
    assert 4 * 2 * 12 * (2 * 9 + 1) in allocations(trace, "forward")  # forward variables, as long as the longest


def test_many_unknown_values_are_read_at_once(tmp_path):
    source = (
        HEAD
        + """
item, reads = torch.Tensor.item, []
torch.Tensor.item = lambda self: reads.append(self) or item(self)
boxes = torch.rand(300, 4, device="cuda")
rows = boxes.tolist()
assert rows == [[1.0] * 4] * 300 and rows[0] is not rows[1] and len(reads) == 1, len(reads)
assert torch.rand(2, 2, device="cuda").tolist() == [[1.0] * 2] * 2 and len(reads) == 5
assert torch.arange(300).cuda().tolist() == list(range(300))
assert torch.rand(300, device="cuda").argsort().tolist() == list(range(300))
assert torch.rand(300, 0, device="cuda").tolist() == [[]] * 300
on_gpu = [torch.rand(300, device="cuda"), torch.rand(200, device="cuda"), torch.arange(300).cuda()]
assert [sum(1 for value in values.unique()) for values in on_gpu] == [256, 200, 300]
assert sum(1 for value in torch.rand(300, device="cuda")) == 300
for refused in (boxes, boxes.requires_grad_()):
    try:
        refused.numpy()
    except TypeError as error:
        message = str(error)
    assert message.startswith("can't convert cuda:0 device type tensor to numpy"), message
    assert refused.numpy(force=True).shape == (300, 4)
model = nn.Linear(8, 8).cuda()
"""
        + SGD
    )
    trace = traced(tmp_path, source + LOOP.format(x="torch.randn(2, 8, device='cuda')"))
    loops = [text for text in trace.warnings if text.startswith("a loop")]
    assert loops == ["a loop runs for each of 300 values that are not known; assumed: 256 times"]


def test_validity_checks_pass_and_other_comparisons_stay_unknown(tmp_path):
    source = HEAD + "model = nn.Linear(8, 8).cuda()\n" + SGD
    source += """
from torch.distributions import Categorical, Normal, Dirichlet
x = model(torch.randn(4, 8).cuda())
assert torch.isfinite(x).all() and not torch.isnan(x).any() and not x.isinf().any().item()
assert torch.isfinite(x).all().cpu() and not (x != x).any() and (x > 0).all() and (x == x).reshape(-1).all()
assert not (x == 1).all() and not (x[0, 0] > x[0, 1]) and not (x.argmax(1) == 2).all()
action = Categorical(logits=x).sample()
Categorical(probs=x.softmax(-1)).log_prob(action), Normal(x, x.exp()).rsample(), Dirichlet(x.exp()).rsample()
steps = 0
for _ in range(4):
    loss = model(torch.randn(4, 8).cuda()).mean()
    if not torch.isfinite(loss):
        continue
    if loss > 1e6 or torch.isnan(loss):
        raise SystemExit("diverged")
    loss.backward()
    optimizer.step()
"""
    assert traced(tmp_path, source).header.steps == 3


@pytest.mark.parametrize(("cell", "values_per_step"), [("GRUCell", 3 + 3 + 5 + 1), ("LSTMCell", 4 + 4 + 4 + 1 + 1)])
def test_a_recurrent_cell_is_one_fused_kernel(tmp_path, cell, values_per_step):
    """Both gates, for a second backward pass; what the first needs; and the states. Source: ATen/native/cuda/RNN.cu."""
    source = (
        HEAD
        + f"""
model = nn.{cell}(16, 64).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(3):
    h = torch.zeros(128, 64, device="cuda")
    state = (h, h) if "{cell}" == "LSTMCell" else h
    for _ in range(10):
        state = model(torch.empty(128, 16, device="cuda"), state)
    (state[0] if "{cell}" == "LSTMCell" else state).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    del state
"""
    )
    inputs = 10 * 128 * 16 * 4
    assert peak(traced(tmp_path, source), "forward") == pytest.approx(
        10 * values_per_step * 128 * 64 * 4 + inputs, rel=0.03
    )


@pytest.mark.parametrize(
    "lines",
    [
        pytest.param(
            "found = torch.linalg.lstsq(x, x.detach()[:, :2])\n"
            "assert found.solution.shape == (16, 2) and found.residuals.shape == (2,) and found.rank.shape == (0,)\n"
            "assert torch.linalg.lstsq(x[:16], x[:16, 0]).solution.shape == (16,)\n"
            "loss = found.solution.sum()",
            id="least squares",
        ),
        pytest.param("loss = nn.MultiMarginLoss()(x, torch.zeros(64, dtype=torch.long, device='cuda'))", id="margins"),
        pytest.param(
            "loss = nn.MultiLabelMarginLoss()(x, torch.zeros(64, 16, dtype=torch.long, device='cuda'))", id="labels"
        ),
        pytest.param(
            "s = x.to_sparse()\nassert s.indices().shape == (2, 64 * 16)\nloss = torch.sparse.mm(s, x.t()).sum()",
            id="made sparse",
        ),
        pytest.param(
            "covariance = x.t() @ x\n"
            "loss = torch.distributions.MultivariateNormal(x, covariance).log_prob(x.detach()).sum()\n"
            "try: torch.distributions.MultivariateNormal(torch.zeros(2), torch.tensor([[1.0, 2.0], [2.0, 1.0]]))\n"
            "except ValueError: pass\nelse: raise AssertionError('on the CPU, values are known')",
            id="a checked matrix",
        ),
        pytest.param(
            "share = x.detach().softmax(-1)\n"
            "torch.distributions.Multinomial(10, share).entropy()\n"
            "torch.distributions.Bernoulli(share).log_prob(share)\n"
            "assert torch.distributions.VonMises(x, x.exp()).sample((3,)).shape == (3, 64, 16)\n"
            "loss = x.sum()",
            id="whole numbers and rejected samples",
        ),
        pytest.param(
            "layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)\n"
            "encoder = nn.TransformerEncoder(layer, 2).cuda().eval()\n"
            "with torch.no_grad(): found = encoder(x[None], src_key_padding_mask=x[None, :, 0] > 0)\n"
            "assert found.shape == (1, 64, 16)\n"
            "loss = x.sum()",
            id="padding in evaluation",
        ),
        pytest.param("loss = torch.func.hessian(lambda x: (x**3).sum())(x[0]).sum()", id="forward over reverse"),
    ],
)
def test_operators_with_incomplete_meta_kernels_are_traced(tmp_path, lines):
    source = (
        HEAD
        + "model = nn.Linear(16, 16).cuda()\n"
        + SGD
        + f"""
for _ in range(3):
    x = model(torch.ones(64, 16, device="cuda"))
    exec({lines!r})
    loss.backward()
    optimizer.step()
"""
    )
    assert not traced(tmp_path, source).partial


HALVES = """
model = nn.Sequential(nn.Linear(1024, 8192), nn.Linear(8192, 1024)).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
def step(batch):
    model(torch.empty(batch, 1024, device="cuda")).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
batch = 16_000_000
"""
CATCHES = """
while True:
    try:
        for _ in range(3):
            step(batch)
        break
    except {error}:
        batch //= 2
        torch.cuda.empty_cache()
assert batch == 500_000, batch
"""


@pytest.mark.parametrize(
    "error",
    [
        pytest.param("torch.cuda.OutOfMemoryError", id="by its class"),
        pytest.param("torch.OutOfMemoryError", id="by its other name"),
        pytest.param(
            "RuntimeError as error:\n        assert 'out of memory' in str(error)\n        #", id="by its words"
        ),
    ],
)
def test_a_script_that_catches_out_of_memory_sees_it(tmp_path, error):
    trace = traced(tmp_path, HEAD + HALVES + CATCHES.format(error=error))
    assert peak(trace) <= 40 * 2**30
    assert trace.header.oom_raised
    assert "catches out-of-memory errors" in trace.warnings[0]


def test_a_script_that_does_not_catch_out_of_memory_has_no_limit(tmp_path):
    unrelated = "try:\n    pass\nexcept torch.cuda.OutOfMemoryError:\n    pass\n"
    trace = traced(tmp_path, HEAD + HALVES + unrelated + "for _ in range(3):\n    step(batch)\n")
    assert peak(trace) > 500 * 2**30
    assert not trace.header.oom_raised


@pytest.mark.parametrize("product", ["torch.sparse.mm(near, x)", "torch.spmm(near, x)", "near @ x"])
def test_sparse_times_dense_matrix_products_are_traced(tmp_path, product):
    source = f"""{HEAD}
model = nn.Linear(32, 64).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
edges = torch.randint(0, 1000, (2, 5000))
near = torch.sparse_coo_tensor(edges.cuda(), torch.ones(5000).cuda(), (1000, 1000)).coalesce()
for _ in range(3):
    x = model(torch.randn(1000, 32).cuda())
    out = {product}
    assert out.shape == (1000, 64) and not out.is_sparse
    out.mean().backward()
    optimizer.step()
"""
    trace = traced(tmp_path, source)
    assert 4 * 1001 in allocations(trace, "forward")  # rows, compressed
    assert 4 * 1001 in allocations(trace, "backward")
    assert 4 * 1000 * 1000 not in allocations(trace)


DETECTION = """
import torch, torchvision
model = torchvision.models.detection.{model}(weights=None, weights_backbone=None, num_classes=2).cuda()
optimizer = torch.optim.SGD([parameter for parameter in model.parameters() if parameter.requires_grad], lr=0.1)
def images():
    return [torch.rand(3, 120, 160).cuda() for _ in range(2)]
def targets():
    boxes = torch.tensor([[10.0, 10, 50, 60], [20, 20, 90, 80]])
    return [{{"boxes": boxes.cuda(), "labels": torch.ones(2, dtype=torch.int64).cuda()}} for _ in range(2)]
losses = model(images(), targets())
sum(losses.values()).backward()
optimizer.step()
model.eval()
with torch.inference_mode():
    found = model(images())
assert found[0]["boxes"].shape[1] == 4
"""


def test_a_detector_with_proposals_is_traced(tmp_path):
    if importlib.util.find_spec("torchvision") is None:
        pytest.skip("needs torchvision")
    trace = traced(tmp_path, DETECTION.format(model="fasterrcnn_resnet50_fpn"), steps=1)
    assert not trace.partial
    # 512 proposals of each image, whatever was found: 256 channels of 7 x 7.
    assert 4 * 2 * 512 * 256 * 7 * 7 in allocations(trace, "forward")
    assert any("depends on the data" in warning for warning in trace.warnings)


def test_profilers_run_and_allocate_nothing(tmp_path):
    source = (
        HEAD
        + "model = nn.Linear(8, 8).cuda()\n"
        + SGD
        + """
from torch.profiler import ProfilerActivity, profile, record_function, schedule
activities, plan = [ProfilerActivity.CPU, ProfilerActivity.CUDA], schedule(wait=1, warmup=1, active=1)
with profile(activities=activities, schedule=plan) as p:
    for _ in range(3):
        with record_function("step"):
            model(torch.randn(2, 8).cuda()).sum().backward()
            optimizer.step()
        p.step()
print(p.key_averages().table(sort_by="cuda_time_total"), p.export_chrome_trace("trace.json"))
torch.cuda.memory._record_memory_history()
torch.cuda.memory._dump_snapshot("snapshot.pickle")
"""
    )
    assert not traced(tmp_path, source).partial
    assert sorted(path.name for path in tmp_path.iterdir()) == ["answer", "log", "scratch", "train.py"]


def test_loaders_with_persistent_workers_restart_every_epoch(tmp_path):
    source = (
        HEAD
        + "model = nn.Linear(8, 8).cuda()\n"
        + SGD
        + """
from torch.utils.data import DataLoader
loader = DataLoader(torch.randn(20, 8), batch_size=10, num_workers=2, persistent_workers=True)
for _ in range(3):
    for x in loader:
        model(x.cuda()).sum().backward()
        optimizer.step()
"""
    )
    trace = traced(tmp_path, source, steps=4)
    assert (trace.partial, trace.warnings) == (False, ())


def test_a_parameter_can_move_under_inference_mode(tmp_path):
    source = (
        HEAD
        + "model = nn.Linear(8, 8).cuda()\n"
        + SGD
        + """
with torch.inference_mode():
    assert torch.tensor(1).to(torch.ones(3, device="cuda")).is_cuda
"""
        + LOOP.format(x="torch.randn(4, 8).cuda()")
    )
    assert not traced(tmp_path, source).partial


def test_resized_storages_are_reallocated(tmp_path):
    source = (
        HEAD
        + """
x = torch.empty(1000, device="cuda")
x.untyped_storage().resize_(0)
assert torch.cuda.memory_allocated() == 0
x.untyped_storage().resize_(4000)
y = torch.empty(10, device="cuda").resize_(500)
assert torch.cuda.memory_allocated() == 4096 + 2048
model = nn.Linear(8, 8).cuda()
"""
        + SGD
        + LOOP.format(x="torch.randn(4, 8).cuda()")
    )
    assert not traced(tmp_path, source).partial


@pytest.mark.parametrize(
    ("lines", "kind", "words"),
    [
        pytest.param("\n\nraise KeyError('x')", "raised", "KeyError: 'x' (train.py, line 5)", id="an error"),
        pytest.param(
            "def f():\n    nn.Linear(2, 3)(torch.ones(4))\n\nf()", "raised", "(train.py, line 4)", id="in a library"
        ),
        pytest.param("import a_missing_thing", "import", "No module named 'a_missing_thing' (train.py", id="an import"),
        pytest.param(
            "x = torch.ones(3, device='cuda')\ntorch.histogram(x, 3)",
            "unsupported",
            "`aten::histogram.bin_ct` cannot be traced: its result is not known from shapes alone (train.py, line 4)",
            id="an operation",
        ),
    ],
)
def test_errors_name_the_line_of_the_script(tmp_path, lines, kind, words):
    with failing(kind, words):
        traced(tmp_path, HEAD + lines)


def test_a_deep_copied_model_runs_on_the_gpu(tmp_path):
    source = (
        HEAD
        + "import copy\nmodel = nn.Linear(8, 8).cuda()\n"
        + SGD
        + """
average = copy.deepcopy(model).requires_grad_(False)
assert isinstance(average.weight, nn.Parameter) and average.weight.data_ptr() != model.weight.data_ptr()
table = torch.zeros(10, 4, device="cuda")
both = copy.deepcopy([table[2:], table[:2], model.weight, model.weight])
assert both[0].untyped_storage().data_ptr() == both[1].untyped_storage().data_ptr() != table.data_ptr()
assert both[2] is both[3] and torch.zeros_like(both[2], memory_format=torch.preserve_format).is_cuda
torch.optim.Adam(copy.deepcopy(model).parameters())
del both, table
with torch.no_grad():
    before = torch.cuda.memory_allocated()
    out = average(torch.ones(4, 8, device="cuda"))
    assert torch.cuda.memory_allocated() - before == 512
    for old, new in zip(average.parameters(), model.parameters()):
        old.lerp_(new, 0.1)
"""
        + LOOP.format(x="torch.randn(4, 8).cuda()")
    )
    assert not traced(tmp_path, source).partial


def test_shapes_computed_in_a_librarys_fake_mode_allocate_nothing(tmp_path):
    source = (
        HEAD
        + "model = nn.Linear(8, 8).cuda()\n"
        + SGD
        + """
from torch._subclasses.fake_tensor import FakeTensorMode
before = torch.cuda.memory_allocated()
with FakeTensorMode() as mode:
    other = nn.Linear(1000, 1000, device="cuda")(torch.empty(5, 1000, device="cuda"))
assert other.shape == (5, 1000) and torch.cuda.memory_allocated() == before
"""
        + LOOP.format(x="torch.randn(4, 8).cuda()")
    )
    assert 4 * 1000 * 1000 not in allocations(traced(tmp_path, source))
