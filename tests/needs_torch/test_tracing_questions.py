"""What a script asks while it is traced is answered as on the simulated GPU, and self-tests of sound programs pass."""

from __future__ import annotations

import pytest

pytest.importorskip("torch", reason="tracing needs torch")

from traced_scripts import allocations, trained

QUESTIONS = {
    "cuDNN": """
        assert torch.backends.cudnn.is_available() and torch.backends.cudnn.version() >= 90000
        assert torch.backends.cudnn.is_acceptable(model.weight)
        assert not torch.backends.cudnn.is_acceptable(model.weight.cpu())
    """,
    "runtime": """
        runtime = torch.cuda.cudart()
        free, total = runtime.cudaMemGetInfo(0)
        assert 0 < free < total == torch.cuda.get_device_properties(0).total_memory
        assert int(runtime.cudaHostRegister(0, 64, 0)) == 0
        torch.cuda.check_error(runtime.cudaProfilerStart())
    """,
    "handles": """
        assert isinstance(torch.cuda.current_blas_handle(), int)
        stream = torch.cuda.Stream()
        assert torch.cuda.ExternalStream(stream.cuda_stream) == stream
        assert isinstance(stream, torch.Stream) and isinstance(stream.record_event(), torch.Event)
        assert isinstance(torch.cuda.ExternalStream(stream.cuda_stream), torch.cuda.ExternalStream)
        with stream:
            assert torch.cuda.current_stream() == stream
        assert torch.cuda.current_stream() == torch.cuda.default_stream()
        assert torch._C._cuda_getCurrentStream(0)[1:] == (0, 1)
    """,
    "raw memory": """
        before = torch.cuda.memory_allocated()
        address = torch.cuda.caching_allocator_alloc(1 << 20)
        assert torch.cuda.memory_allocated() == before + (1 << 20)
        torch.cuda.caching_allocator_delete(address)
        assert torch.cuda.memory_allocated() == before
    """,
    "plans of cuFFT": """
        cache = torch.backends.cuda.cufft_plan_cache
        cache.max_size = 10
        cache.clear()
        assert (cache.size, cache[0].max_size) == (0, 10)
    """,
    "settings": """
        torch.cuda.set_sync_debug_mode("warn")
        assert torch.cuda.get_sync_debug_mode() == 1
        torch.cuda.tunable.enable(True)
        torch.cuda.tunable.set_max_tuning_duration(7)
        assert torch.cuda.tunable.is_enabled() and torch.cuda.tunable.get_max_tuning_duration() == 7
        assert torch.cuda.get_allocator_backend() == "native"
        assert torch.cuda.get_gencode_flags() == "-gencode compute=compute_80,code=sm_80"
    """,
    "memory reports": """
        assert "CUDA OOMs: 0" in torch.cuda.memory_summary()
        torch.cuda.memory._dump_snapshot("snapshot.pickle")
        import pickle
        with open("snapshot.pickle", "rb") as file:
            assert pickle.load(file)["segments"] == []
    """,
    "attention kernels": """
        from torch.backends.cuda import (
            SDPAParams, can_use_cudnn_attention, can_use_efficient_attention, can_use_flash_attention
        )
        def usable(query, mask=None):
            wanted = SDPAParams(query, query, query, mask, 0.0, False, False)
            functions = can_use_flash_attention, can_use_efficient_attention, can_use_cudnn_attention
            return [function(wanted) for function in functions]
        half = torch.zeros(2, 8, 128, 64, device="cuda", dtype=torch.float16)
        assert usable(half) == [True, True, True] and usable(half.float()) == [False, True, False]
        assert usable(half, torch.zeros(2, 8, 128, 128, device="cuda", dtype=torch.float16)) == [False, True, True]
        assert usable(half[0]) == [False, False, False]
    """,
    "TorchScript": """
        import copy
        traced = torch.jit.trace(model, torch.zeros(2, 4, device="cuda"))
        print(traced.code, traced.graph, torch.jit.script(lambda x: x + 1).code)
        traced.save("traced.pt")
        torch.jit.save(traced, buffer := io.BytesIO())
        buffer.seek(0)
        for source in ("traced.pt", buffer):
            loaded = torch.jit.load(source, map_location="cuda")
            assert loaded is not model and loaded(torch.zeros(2, 4, device="cuda")).shape == (2, 4)
        torch.save(copy.deepcopy(model), "model.pt")
    """,
    "ONNX": """
        net = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4)).cuda()
        torch.onnx.export(net, torch.zeros(1, 3, 8, 8, device="cuda"), "net.onnx", dynamo=False, input_names=["x"])
        assert net.training and os.path.getsize("net.onnx")
        torch.onnx.export(net, (torch.zeros(1, 3, 8, 8, device="cuda"),), dynamo=True).save("again.onnx")
    """,
}
"""Scripts that ask, by what they ask about."""


@pytest.mark.parametrize("name", QUESTIONS)
def test_questions_are_answered(tmp_path, name):
    trained(tmp_path, QUESTIONS[name])


def test_a_legacy_export_runs_the_model(tmp_path):
    source = """
    net = torch.nn.Linear(4, 1000).cuda()
    torch.onnx.export(net, torch.zeros(3, 4, device="cuda"), "net.onnx", dynamo=False)
    """
    assert allocations(trained(tmp_path, source)).count(3 * 1000 * 4) == 1


GRADCHECK = """
import torch
class Exp(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x.exp())
        return x.exp()
    @staticmethod
    def backward(ctx, gradient):
        return gradient * ctx.saved_tensors[0]
x = torch.randn(5, 5, dtype=torch.double, device="cuda", requires_grad=True)
assert torch.autograd.gradcheck(Exp.apply, (x,)) and torch.autograd.gradgradcheck(Exp.apply, (x,))
assert torch.autograd.gradcheck(Exp.apply, (x,), fast_mode=True)
assert torch.autograd.gradcheck(lambda x, y: x.exp(), (x, x.detach().clone().requires_grad_()))  # zeros for y
"""


def test_checks_of_gradients_pass_and_are_no_training(tmp_path):
    # Before the script has an optimizer, backward passes count as steps.
    from traced_scripts import TRAINING, traced

    trace = traced(tmp_path, f"{GRADCHECK}\n{TRAINING}\ntrain()\n")
    assert not trace.warnings
    assert trace.header.steps == 3


EQUAL = """
def show(*found):
    assert found == wanted, (found, wanted)
def differences(a, b):
    largest = max((a.flatten()[:5] - b.flatten()[:5]).abs()).item()
    difference = (a - b).abs().max().item()
    return difference, (a == b).all().item(), a.ne(b).sum().item() == 0, bool((a - b).norm() < 1e-6)
same, other = (0.0, True, True, True), (1.0, False, False, False)
"""


@pytest.mark.parametrize("size", [4, 2000], ids=["small", "large"])
def test_a_copy_equals_its_source_until_one_is_written_to(tmp_path, size):
    source = f"""
    {EQUAL.replace(chr(10), chr(10) + "    ")}
    size = {size}
    a = torch.nn.Parameter(torch.randn(size, size, device="cuda"))
    b = a.detach().clone()
    assert differences(a, b) == same and differences(a, a.data) == same
    assert torch.nn.functional.mse_loss(a, b).item() == 0 and torch.dist(a, b).item() == 0
    b += 1
    assert differences(a, b) == other
    b.copy_(a.detach())
    assert differences(a, b) == same
    with torch.no_grad():
        torch._foreach_add_([a], 1)
    assert differences(a, b) == other
    with torch.no_grad():
        torch._foreach_copy_([b], [a])
    assert differences(a, b) == same
    zero = a - b
    zero += 1
    assert zero.max().item() == 1
    assert differences(a.t(), a.t().clone()) == same and differences(a, a.t()) == other
    """
    trained(tmp_path, source)


def test_weights_that_were_loaded_or_copied_are_equal_until_a_step(tmp_path):
    source = f"""
    import copy
    {EQUAL.replace(chr(10), chr(10) + "    ")}
    loaded, copied = torch.nn.Linear(4, 4).cuda(), copy.deepcopy(model)
    assert differences(loaded.weight, model.weight) == other
    loaded.load_state_dict(model.state_dict())
    for net in (loaded, copied):
        assert all((a == b).all() for a, b in zip(net.parameters(), model.parameters()))
    train_once = model(torch.zeros(2, 4, device="cuda")).sum().backward()
    before = model.weight.grad.clone()
    model(torch.zeros(2, 4, device="cuda")).sum().backward()
    assert differences(before, model.weight.grad) == other
    optimizer.step()
    assert differences(loaded.weight, model.weight) == other
    assert differences(loaded.weight, copied.weight) == same
    """
    trained(tmp_path, source)


def test_asserted_numbers_and_inequalities_pass(tmp_path):
    source = """
    before, limit = model.weight.detach().clone(), 1e-3
    model(torch.ones(2, 4, device="cuda")).sum().backward()
    optimizer.step()
    assert not torch.equal(before, model.weight)
    assert not torch.allclose(before, model.weight), "the step changes nothing"
    known, drawn = torch.tensor([[1.0] * 4] * 4, device="cuda"), torch.randn(4, 4, device="cuda")
    assert torch.equal(drawn, known)
    assert torch.allclose(known, drawn)
    a, b = (torch.randn(4, 4, device="cuda") for _ in range(2))
    assert (a - b).abs().max().item() < limit
    assert 0.0 <= a.mean().item() <= 0.2
    assert float(a.norm()) > 5
    assert a.mean().item() == 1.0  # the number that an unknown one is elsewhere
    if (a - b).abs().max() > 1e-3: raise ValueError("a guard")
    if (a - b).abs().max().item() > limit:
        raise ValueError("a guard of a number")
    if torch.equal(a, b):
        raise ValueError("a guard of equality")
    if (a - b).mean() >= 0.001:
        print("a guard that exits")
        exit(1)
    import sys
    if a.mean().item() > limit:
        sys.stderr.write("a guard that exits, after a report"); sys.stderr.flush()
        sys.exit(1)
    done = []
    try:
        if a.mean().item() > limit:
            done.append("more than a report")
            raise StopIteration
    except StopIteration:
        assert done
    assert done
    """
    assert trained(tmp_path, source).warnings == ()  # an error after a step would be one


def test_unknown_positions_choose_evenly_of_a_sorted_vector(tmp_path):
    source = """
    graphs = torch.arange(12).repeat_interleave(5).cuda()
    order = torch.randn(60, device="cuda").argsort()
    assert graphs[order].sort()[0].tolist() == graphs.tolist()
    assert graphs[order[:24]].bincount().tolist() == [2] * 12
    assert int(torch.tensor([3, 1, 2, 2], device="cuda")[order[:2] % 4].max()) == 1, "not sorted: not known"
    assert int(torch.arange(9, device="cuda")[order[:2] % 9].max()) == 1, "all differ: not known"
    """
    assert not any("error" in text or "raised" in text for text in trained(tmp_path, source).warnings)


def test_draws_without_replacement_are_distinct(tmp_path):
    source = """
    drawn = torch.multinomial(torch.rand(2, 50, device="cuda"), 3).tolist()
    assert all(len(set(row)) == 3 for row in drawn), drawn
    """
    assert not trained(tmp_path, source).warnings


def test_a_mask_made_for_images_is_known_as_far_as_it_is_written(tmp_path):
    source = """
    images = torch.randn(8, 3, 224, 224, device="cuda")
    mask = images.new_zeros((8, 197), dtype=torch.bool)
    blocks = torch.zeros(8, 196, dtype=torch.bool, device="cuda")
    blocks[:, 3:23] = True
    mask[:, 1:] = blocks
    assert mask.nonzero().shape == (160, 2)
    assert images.new_ones(5, dtype=torch.int64).sum().item() == 5
    """
    assert trained(tmp_path, source).warnings == ()
