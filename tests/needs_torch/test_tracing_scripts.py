"""Ordinary scripts: checkpoints, data, masks, recurrent layers, and errors under tracing."""

from __future__ import annotations

import importlib.util

import pytest

from traced_scripts import allocations, by_category, failing, traced

torch = pytest.importorskip("torch", reason="tracing needs torch")

TRAIN = """
for _ in range(5):
    optimizer.zero_grad()
    loss = model(torch.randn(4, 8).cuda()).square().mean()
    loss.backward()
    optimizer.step()
"""
MODEL = """
import torch
from torch import nn
model = nn.Linear(8, 8).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
"""


@pytest.mark.parametrize(
    "lines",
    [
        pytest.param(
            """
            x = torch.randn(4, 8, device="cuda")
            assert (x.sum().item(), float(x.sum()), f"{x.sum():.3f}") == (1.0, 1.0, "1.000")
            assert x.cpu().numpy().shape == (4, 8) and x.device.type == "cuda" and x.is_cuda
            print(x, x.mean(), model, x.tolist())
            assert not torch.isnan(x.sum()) and torch.isfinite(x).all().item() in (True, False)
            """,
            id="reads and prints",
        ),
        pytest.param(
            """
            here = torch.arange(6).float()
            assert here.mean().item() == 2.5 and (here * 2).numpy()[3] == 6.0
            """,
            id="CPU tensors are real",
        ),
        pytest.param(
            """
            y = torch.tensor([3, 1, 2]).cuda()
            assert y.tolist() == [3, 1, 2] and y.max() == 3 and y[1:].cpu().tolist() == [1, 2]
            y[0] = 7
            y.add_(1)
            assert y.sum().item() == 13 and bool((y == 8).any()) and int(y.argmax()) == 0
            z = torch.full((3,), 5, device="cuda")
            z.copy_(y)
            assert torch.equal(y, z) and torch.bincount(z).shape == (9,)
            """,
            id="integers keep their values",
        ),
        pytest.param(
            """
            y = torch.tensor([3, 1, 2]).cuda()
            y += torch.randn(3, device="cuda").long()
            assert y.sum().item() == 1  # not known any more
            """,
            id="integers that the model touched do not",
        ),
        pytest.param(
            """
            mask = torch.tensor([True, False, True, True]).cuda()
            x = torch.randn(4, 8, device="cuda")
            assert x[mask].shape == (3, 8) and mask.nonzero().shape == (3, 1)
            assert x.masked_select(mask[:, None]).shape == (24,)
            assert torch.unique(torch.tensor([1, 1, 2]).cuda()).shape == (2,)
            assert x.repeat_interleave(torch.tensor([1, 2, 3, 4]).cuda(), dim=0).shape == (10, 8)
            x[mask] = torch.ones(3, 8, device="cuda")
            """,
            id="shapes that depend on known values",
        ),
        pytest.param(
            """
            generator = torch.Generator(device="cuda").manual_seed(1)
            assert generator.device.type == "cuda" and isinstance(torch.default_generator, torch.Generator)
            assert sorted(torch.randperm(5, generator=generator, device="cuda").tolist()) == [0, 1, 2, 3, 4]
            torch.randn(3, device="cuda", generator=generator)
            torch.cuda.default_generators[0].set_state(torch.cuda.get_rng_state())
            state = generator.get_state()
            drawn = [torch.randperm(50, generator=generator.set_state(state), device="cuda").tolist() for _ in "ab"]
            assert drawn[0] == drawn[1] != sorted(drawn[0])
            """,
            id="generators",
        ),
        pytest.param(
            """
            import copy
            twin = copy.deepcopy(model).half()
            assert twin.weight.dtype is torch.float16 and model.weight.dtype is torch.float32
            model.load_state_dict(copy.deepcopy(model.state_dict()))
            optimizer.load_state_dict(optimizer.state_dict())
            model.weight.data = model.weight.data * 2
            """,
            id="copies and states",
        ),
        pytest.param(
            """
            before = torch.cuda.memory_allocated()
            keep = torch.empty(1000, device="cuda")
            assert torch.cuda.memory_allocated() - before == 4096
            del keep
            assert torch.cuda.memory_allocated() == before
            assert torch.cuda.max_memory_allocated() >= torch.cuda.memory_allocated() > 0
            assert torch.cuda.memory_stats()["allocated_bytes.all.peak"] > 0
            assert torch.cuda.get_device_name() == "A100" and torch.cuda.get_device_capability() == (8, 0)
            """,
            id="asks for memory",
        ),
        pytest.param(
            """
            x = torch.cuda.FloatTensor(2, 3)
            assert isinstance(x, torch.cuda.FloatTensor) and not isinstance(x, torch.cuda.LongTensor)
            assert torch.ones(2).type("torch.cuda.HalfTensor").dtype is torch.float16
            assert torch.cuda.LongTensor([1, 2]).tolist() == [1, 2]
            edges = torch.cuda.LongTensor([[0, 1], [1, 0]])
            graph = torch.cuda.sparse.FloatTensor(edges, torch.cuda.FloatTensor([1, 1]), torch.Size([2, 3]))
            assert graph.is_cuda and torch.sparse.mm(graph, torch.ones(3, 4).cuda()).shape == (2, 4)
            assert torch.cuda.sparse.DoubleTensor(2, 3).dtype is torch.float64
            """,
            id="old spellings",
        ),
        pytest.param(
            """
            import threading
            seen = []
            thread = threading.Thread(target=lambda: seen.append(torch.ones(3).cuda().device.type))
            thread.start()
            thread.join()
            assert seen == ["cuda"]
            """,
            id="threads",
        ),
        pytest.param(
            """
            with torch.inference_mode():
                out = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)).cuda().eval()(torch.randn(2, 3, 8, 8).cuda())
                q = torch.randn(1, 2, 4, 8, device="cuda")
                assert nn.functional.scaled_dot_product_attention(q, q, q).shape == q.shape
                assert out.shape == (2, 4, 6, 6)
            """,
            id="inference mode",
        ),
        pytest.param(
            """
            pinned = torch.empty(10, pin_memory=True).new_empty(10, pin_memory=True).pin_memory()
            assert pinned.to("cuda", non_blocking=True).shape == (10,)
            with torch.autograd.graph.save_on_cpu(pin_memory=True):
                model(torch.randn(2, 8).cuda()).sum().backward()
            """,
            id="pinned memory",
        ),
        pytest.param(
            """
            a, b = (torch.empty(7, device="cuda") for _ in range(2))
            assert len({a.data_ptr(), b.data_ptr(), 0}) == 3 and a[2:].data_ptr() == a.data_ptr() + 8
            assert 0 != a.untyped_storage().data_ptr() == a.view(7).untyped_storage().data_ptr()
            """,
            id="addresses",
        ),
    ],
)
def test_ordinary_scripts_run_as_on_a_gpu(tmp_path, lines):
    import textwrap

    trace = traced(tmp_path, MODEL + textwrap.dedent(lines) + TRAIN)
    assert not trace.partial
    assert trace.header.steps == 3


def test_unknown_sizes_are_assumed_maximal_with_a_warning(tmp_path):
    trace = traced(
        tmp_path, MODEL + "x = torch.randn(6, 2, device='cuda')\nassert x[x[:, 0] > 0].shape == (6, 2)\n" + TRAIN
    )
    assert trace.warnings == ("the size that `index` gives depends on the data; assumed: every element is found",)


def test_saved_checkpoints_stay_in_memory(tmp_path):
    (tmp_path / "old.pt").write_bytes(b"precious")
    lines = """
state = {"model": model.state_dict(), "epoch": 3, "here": torch.arange(3)}
torch.save(state, "old.pt")
import shutil
shutil.copyfile("old.pt", "best.pt")
again = torch.load("best.pt", map_location="cuda")
assert again["epoch"] == 3 and again["here"].is_cuda and again["model"]["weight"].is_cuda
assert not torch.load("best.pt", map_location="cpu")["model"]["weight"].is_cuda
model.load_state_dict(again["model"])
"""
    traced(tmp_path, MODEL + lines + TRAIN)
    assert (tmp_path / "old.pt").read_bytes() == b"precious"
    assert not (tmp_path / "best.pt").exists()


def test_existing_checkpoints_are_loaded(tmp_path):
    torch.save({"weight": torch.ones(8, 8), "bias": torch.zeros(8)}, tmp_path / "pretrained.pt")
    lines = "found = torch.load('pretrained.pt', map_location='cuda')\nassert found['weight'].is_cuda\n"
    traced(tmp_path, MODEL + lines + "model.load_state_dict(found)\n" + TRAIN)


LOADER = """
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset, BatchSampler, SequentialSampler
class Words(Dataset):
    def __len__(self):
        return 100
    def __getitem__(self, index):
        return {"x": torch.randn(8), "y": index % 3}
class Stream(IterableDataset):
    def __iter__(self):
        yield from (torch.randn(8) for _ in range(100))
model = torch.nn.Linear(8, 3).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
def pad(samples):
    return torch.stack([sample["x"] for sample in samples] + [torch.zeros(8)])
for batch in LOADER:
    x = batch["x"] if isinstance(batch, dict) else batch[0] if isinstance(batch, list) else batch
    model(x.to("cuda", non_blocking=True)).sum().backward()
    optimizer.step()
"""


@pytest.mark.parametrize(
    ("loader", "rows"),
    [
        pytest.param(
            "DataLoader(Words(), 16, num_workers=2, pin_memory=True, persistent_workers=True)",
            [16, 16, 4],
            id="workers",
        ),
        pytest.param("DataLoader(Words(), 16, collate_fn=pad)", [17, 17, 5], id="collate"),
        pytest.param("DataLoader(Stream(), 5)", [5, 5, 5], id="iterable"),
        pytest.param(
            "DataLoader(Words(), batch_sampler=BatchSampler(SequentialSampler(range(100)), 7, False))",
            [7, 7, 2],
            id="batch sampler",
        ),
        pytest.param(
            "DataLoader(Words(), 16, multiprocessing_context='spawn', num_workers=1)", [16, 16, 4], id="spawn"
        ),
        pytest.param("DataLoader(Words(), 20)", [20, 20, 20], id="whole batches"),
        pytest.param("DataLoader(TensorDataset(torch.randn(100, 8)), 9, drop_last=True)", [9, 9, 9], id="tensors"),
        pytest.param("DataLoader(Words(), batch_size=None)", [1, 1, 1], id="no batches"),
    ],
)
def test_batches_have_the_shape_of_the_data(tmp_path, loader, rows):
    trace = traced(tmp_path, LOADER.replace("LOADER", loader))
    assert trace.header.steps == 3
    found = [nbytes for nbytes in allocations(trace, category="input") if nbytes % (4 * 8) == 0]
    assert found[:3] == [4 * 8 * row for row in rows]


def test_a_batch_can_mix_sequence_lengths(tmp_path):
    trace = traced(
        tmp_path,
        """
        import torch
        from torch.nn.utils.rnn import pad_sequence
        from torch.utils.data import DataLoader
        sentences = [torch.ones(10 + 7 * (index % 3)) for index in range(40)]
        model = torch.nn.Linear(24, 1).cuda()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        collate = lambda samples: pad_sequence(samples, batch_first=True)
        for batch in DataLoader(sentences, batch_size=8, collate_fn=collate):
            assert batch.shape == (8, 24) and not batch.all()
            model(batch.cuda()).sum().backward()
            optimizer.step()
        """,
    )
    assert trace.header.steps == 3


def test_recurrent_layers_are_one_cudnn_call(tmp_path):
    trace = traced(
        tmp_path,
        """
        import torch
        from torch.nn.utils.rnn import pack_padded_sequence
        model = torch.nn.LSTM(8, 16, num_layers=2, batch_first=True).cuda()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(3):
            x = torch.randn(4, 10, 8).cuda()
            out, _ = model(x)
            packed, _ = model(pack_padded_sequence(x, torch.tensor([10, 7, 3, 1]), batch_first=True))
            assert packed.data.shape == (21, 16)
            (out.sum() + packed.data.sum()).backward()
            optimizer.step()
            optimizer.zero_grad()
        """,
    )
    weights = 4 * (4 * 16 * (8 + 16 + 2) + 4 * 16 * (16 + 16 + 2))
    assert allocations(trace, category="parameter")[-1] == weights  # one block, after each had moved by itself
    assert by_category(trace)["parameter"] == 2 * weights
    # The reserve space: four gates and a cell of each unit, what one layer hands to the next, and 256 bytes.
    assert 4 * 10 * (2 * 5 * 16 + 16) * 4 + 256 in allocations(trace, "forward")
    assert any("recurrent" in warning for warning in trace.warnings)


def test_sparse_gradients_hold_rows_not_tables(tmp_path):
    trace = traced(
        tmp_path,
        """
        import torch
        table = torch.nn.Embedding(10_000, 16, sparse=True).cuda()
        optimizer = torch.optim.SparseAdam(table.parameters())
        for _ in range(3):
            table(torch.tensor([5, 5, 6]).cuda()).sum().backward()
            assert table.weight.grad.is_sparse and table.weight.grad._nnz() == 3
            assert table.weight.grad.coalesce()._nnz() == 2
            optimizer.step()
            optimizer.zero_grad()
        """,
    )
    assert allocations(trace).count(4 * 10_000 * 16) == 3  # weights and two states, no gradient


def test_attention_masks_of_ones_are_dropped_and_padded_masks_are_not(tmp_path):
    pytest.importorskip("transformers", reason="needs transformers")
    source = """
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM
    model = LlamaForCausalLM(LlamaConfig(vocab_size=100, hidden_size=32, intermediate_size=64, num_hidden_layers=1,
                                         num_attention_heads=4, num_key_value_heads=2)).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    ids, mask = (torch.ones(2, 24, dtype=torch.long) for _ in range(2))
    mask[0, :PADDING] = 0
    model(input_ids=ids.cuda(), attention_mask=mask.cuda(), labels=ids.cuda()).loss.backward()
    optimizer.step()
    """
    full = allocations(traced(tmp_path, source.replace("PADDING", "0")))
    padded = allocations(traced(tmp_path, source.replace("PADDING", "5")))
    assert 2 * 24 * 24 not in full  # a mask of one byte for each pair of positions
    assert 2 * 24 * 24 in padded


def test_one_process_of_a_distributed_job_is_traced(tmp_path):
    plain = traced(tmp_path, MODEL + TRAIN)
    lines = """
import os
os.environ.update(RANK="1", WORLD_SIZE="4", LOCAL_RANK="0", MASTER_ADDR="127.0.0.1", MASTER_PORT="1")
torch.distributed.init_process_group("nccl")
assert (torch.distributed.get_rank(), torch.distributed.get_world_size()) == (1, 4)
model = nn.parallel.DistributedDataParallel(model, device_ids=[0])
torch.distributed.all_reduce(torch.ones(3).cuda())
torch.distributed.barrier()
"""
    wrapped = traced(tmp_path, MODEL + lines + TRAIN)
    weights = 4 * (8 * 8 + 8)
    assert allocations(wrapped, "load").count(weights) == 2  # the first worker's values, and one bucket of gradients
    assert allocations(plain, "load").count(weights) == 0
    assert any("distributed" in warning for warning in wrapped.warnings)


def test_data_parallel_on_one_gpu_is_traced(tmp_path):
    assert not traced(tmp_path, MODEL + "model = nn.DataParallel(model)\n" + TRAIN).partial


@pytest.mark.parametrize(
    ("source", "kind", "words"),
    [
        pytest.param("raise ValueError('no data')", "raised", "ValueError: no data", id="raises"),
        pytest.param("import sys; sys.exit(3)", "raised", "exit code 3", id="exits"),
        pytest.param(
            "import argparse; argparse.ArgumentParser().parse_args(['--x'])", "raised", "exit code 2", id="usage"
        ),
        pytest.param("print('done')", "no-cuda", "without putting anything on a GPU", id="no GPU"),
        pytest.param("import torch; torch.ones(3).cuda()", "no-step", "without an optimizer step", id="no step"),
        pytest.param("input()", "raised", "EOFError", id="wants input"),
    ],
)
def test_errors_have_a_kind_and_a_message(tmp_path, source, kind, words):
    with failing(kind, words):
        traced(tmp_path, source)


def test_an_error_after_a_step_gives_a_partial_trace(tmp_path):
    trace = traced(
        tmp_path, MODEL + TRAIN.replace("    optimizer.step()", "    optimizer.step()\n    raise OSError('disk')")
    )
    assert trace.partial
    assert trace.header.steps == 1
    assert "OSError: disk (train.py, line 12), after 1 optimizer step" in trace.warnings[0]


def test_a_script_that_ends_by_itself_is_complete(tmp_path):
    trace = traced(tmp_path, MODEL + TRAIN.replace("range(5)", "range(1)"))
    assert (trace.partial, trace.header.steps) == (False, 1)


def test_lengths_on_the_gpu_are_refused_as_by_torch(tmp_path):
    source = """
    import torch
    from torch.nn.utils.rnn import pack_padded_sequence
    pack_padded_sequence(torch.ones(4, 2, 3, device="cuda"), torch.tensor([4, 2], device="cuda"))
    """
    with failing("raised", "1D CPU int64 tensor"):
        traced(tmp_path, source)


@pytest.mark.skipif(importlib.util.find_spec("numpy") is None, reason="needs NumPy")
def test_a_parameter_that_is_read_as_a_mask_has_its_first_values(tmp_path):
    source = """
    import numpy
    import torch
    class Selection(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.indices = torch.nn.Parameter(torch.tensor([1.0, 0.0, 1.0, 1.0]))
            self.scale = torch.nn.Parameter(torch.ones(4))
        def forward(self, x):
            return (x * self.scale)[:, numpy.argwhere(self.indices.data.cpu().numpy()).squeeze()]
    model = torch.nn.Sequential(Selection(), torch.nn.Linear(3, 2)).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    assert model[0].scale.data.tolist() == [1.0] * 4
    for _ in range(3):
        out = model(torch.zeros(2, 4, device="cuda"))
        out.sum().backward()
        optimizer.step()
        assert model[0].indices.data.tolist() == [1.0, 0.0, 1.0, 1.0]  # no gradient changes it
        assert model[0].scale.data.tolist() != [1.0] * 4  # it was trained
    """
    traced(tmp_path, source)
