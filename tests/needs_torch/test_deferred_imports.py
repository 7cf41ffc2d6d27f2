"""The compiler and sympy are imported where a script needs them, and are complete then."""

from __future__ import annotations

import gc
import inspect
import subprocess
import sys

import pytest

from cotenant.tracing.process import garbage_collection

pytest.importorskip("torch", reason="tracing needs torch")

EAGER_THEN_COMPILED = """
import sys
import torch
from torch.utils import checkpoint

from torch._subclasses.fake_tensor import FakeTensor

from cotenant.tracing.operators.meta_kernels import make_fake_mode
from cotenant.tracing.patches import deferred_compiler, deferred_imports, deferred_module, late_names
from cotenant.tracing.patches.registry import HookPatch

fake = make_fake_mode()
assert not deferred_module.is_loaded("torch._dynamo") and "sympy" not in sys.modules
entries = [*deferred_compiler.patches(None), *deferred_imports.patches(None), *late_names.patches(None)]
undo = [entry.register() for entry in entries if isinstance(entry, HookPatch)]
held = sys.modules["torch.fx.experimental.symbolic_shapes"]
config = torch._dynamo.config
assert config._custom_ops_profile is None and not deferred_module.is_loaded("torch._dynamo.config")
config.cache_size_limit = 9  # as timm's optimizers do where they are imported
assert torch._dynamo.config.cache_size_limit == 9
import torch._dynamo.config as imported
assert imported.cache_size_limit == 9
try:
    config.no_setting = 1
    raise SystemExit("there is no such setting")
except AttributeError:
    pass
from torch._dynamo.utils import is_compile_supported
from functorch.compile import memory_efficient_fusion

from torch._dynamo import OptimizedModule, allow_in_graph
from torch._dynamo._trace_wrapped_higher_order_op import TransformGetItemToIndex
with TransformGetItemToIndex():
    rows = torch.vmap(lambda row: torch.arange(3)[row])(torch.arange(2))
assert rows.tolist() == [0, 1]
assert not isinstance(torch.nn.Linear(1, 1), (OptimizedModule, torch._dynamo.eval_frame.OptimizedModule))

@torch.compiler.allow_in_graph
def opaque(x):
    torch._dynamo.graph_break()  # not looked at
    return x

@torch.compiler.disable
def uncompiled(x):
    assert not torch.compiler.is_compiling()
    return x + 1

torch.use_deterministic_algorithms(True, warn_only=True)
assert torch.is_deterministic_algorithms_warn_only_enabled() and "torch._inductor.config" not in sys.modules

model = torch.nn.Linear(2, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
optimizer.zero_grad()
uncompiled(checkpoint.checkpoint(model, torch.ones(1, 2, requires_grad=True), use_reentrant=True)).sum().backward()
optimizer.step()
assert torch.ones_like(torch.empty(3, 4, device="meta")).shape == (3, 4)
assert torch._refs._broadcast_shapes((3, 1), (4,)) == [3, 4]
assert held.sym_eq((1, 2), [1, 2]) and not held.sym_eq((1, 2), (1, 3)) and held.sym_or(False, 3 > 2)
assert [type(entry) for entry in map(sys.modules.get, ("torch._dynamo", "torch._dynamo.utils"))] == 2 * [type(held)]
import inspect
from torch._prims_common import ELEMENTWISE_TYPE_PROMOTION_KIND, elementwise_dtypes
kind = ELEMENTWISE_TYPE_PROMOTION_KIND.DEFAULT
assert elementwise_dtypes(torch.empty(2), 1, type_promotion_kind=kind)[1] is torch.float32
inspect.getmodule(compile("", "no such file", "exec"))
assert torch.ops.aten.sum.dim_IntList(torch.empty(3, 4, device="meta"), [0], dtype=torch.float64).shape == (4,)
dense = torch._prims_common.is_non_overlapping_and_dense_or_false
assert dense(torch.empty(3, 4).t()) and not dense(torch.empty(3, 4)[:, ::2])
assert torch.sym_not(False) is True and torch.sym_not(True) is False
index = FakeTensor(fake, torch.empty(3, dtype=torch.int64, device="meta"), torch.device("cpu"))
values = FakeTensor(fake, torch.empty(5, device="meta"), torch.device("cpu"))
assert fake.dispatch(torch.ops.aten.index.Tensor, (FakeTensor,), (values, [index])).shape == (3,)
ones = torch.empty(2, 3, device="meta")
assert torch.ops.aten.select_backward(ones, [2, 4, 3], 1, 0).shape == (2, 4, 3)  # of `x[:, 0]`
assert torch.ops.aten.slice_scatter(ones, ones[:, 1:], 1, 1).stride() == (3, 1)
weight = torch.nn.Parameter(torch.ones(3, 4))
weight.grad = torch.ones(3, 4)
for real in (weight, weight[1:], torch.ones(3, 4).t(), torch.ones(4)[None].expand(3, 4)):  # as an operator meets them
    assert fake.from_tensor(real).shape == real.shape
from torch._dynamo.source import AttrSource, ConstantSource, RandomValueSource
assert not isinstance(AttrSource(ConstantSource("x"), "_base"), RandomValueSource)
assert "sympy" not in sys.modules and not deferred_module.is_loaded("torch._dynamo")
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode as caught

graphs = []
def backend(graph, inputs):
    graphs.append(graph)
    return graph

compiled = torch.compile(lambda x: uncompiled(x * 2) * 3, backend=backend)
assert compiled(torch.ones(2)).tolist() == [9.0, 9.0]
assert len(graphs) == 2, graphs  # before and after the function that is not compiled
assert deferred_module.is_loaded("torch._dynamo") and "sympy" in sys.modules
graphs.clear()
assert torch.compile(lambda x: opaque(x * 2) * 3, backend=backend, fullgraph=True)(torch.ones(2)).tolist() == [6.0, 6.0]
assert len(graphs) == 1 and "opaque" in graphs[0].code
module = torch.compile(torch.nn.Linear(1, 1))
made = OptimizedModule(module._orig_mod, lambda f: f)
assert isinstance(module, OptimizedModule) and isinstance(made, OptimizedModule)
assert torch._dynamo.eval_frame.OptimizedModule is torch._dynamo.OptimizedModule is type(module)
assert torch._dynamo._trace_wrapped_higher_order_op.TransformGetItemToIndex is TransformGetItemToIndex
import torch._dynamo.source as sources
fused = memory_efficient_fusion(torch.nn.Linear(2, 2))
assert fused(torch.ones(1, 2)).shape == (1, 2) and type(fused) is not torch.nn.Linear
base = AttrSource(ConstantSource("x"), "_base")
assert type(base) is sources.AttrSource and type(base.base) is sources.ConstantSource
assert isinstance(sources.RandomValueSource(0), RandomValueSource) and not isinstance(base, RandomValueSource)
import torch.fx.experimental.symbolic_shapes as real
assert real.GuardOnDataDependentSymNode is caught and held.ShapeEnv is real.ShapeEnv
assert real.compute_unbacked_bindings is held.compute_unbacked_bindings
assert config._custom_ops_profile is None and config.suppress_errors is torch._dynamo.config.suppress_errors
assert sys.modules["torch._dynamo"].config.cache_size_limit == config.cache_size_limit == 9
config.suppress_errors = True
assert torch._dynamo.config.suppress_errors
assert isinstance(is_compile_supported("cpu"), bool)
assert held.free_unbacked_symbols(torch.empty(3)) == frozenset()
import sympy
assert torch.sym_not(sympy.Symbol("x") > 1) == (sympy.Symbol("x") <= 1)
assert elementwise_dtypes(torch.empty(2), sympy.Integer(1), type_promotion_kind=kind)[1] is torch.float32
import torch._inductor.config
assert getattr(torch._inductor.config, "deterministic", True) and torch.are_deterministic_algorithms_enabled()
torch.use_deterministic_algorithms(False)
assert not getattr(torch._inductor.config, "deterministic", False)
for undo_patch in undo:
    if undo_patch is not None:
        undo_patch()
assert torch.use_deterministic_algorithms.__module__ == "torch" and not hasattr(
    torch.use_deterministic_algorithms, "__wrapped__"
)
import torch.distributed.tensor
"""


def test_eager_code_imports_neither_the_compiler_nor_sympy_and_compiled_code_both():
    words = [sys.executable, "-W", "ignore", "-c", EAGER_THEN_COMPILED]
    done = subprocess.run(words, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_garbage_is_collected_as_usual_from_the_first_storage_on():
    usual = gc.get_threshold()
    try:
        garbage_collection.collect_rarely()
        assert gc.get_threshold()[0] > 10 * usual[0]
        garbage_collection.collect_as_usual()
        assert gc.get_threshold()[:2] == usual[:2]
        gc.set_threshold(5, 5, 5)  # a script's own
        garbage_collection.collect_rarely()
        garbage_collection.collect_as_usual()
        assert gc.get_threshold() == (5, 5, 5)
    finally:
        gc.set_threshold(*usual)


AGED = """
import gc
from cotenant.tracing.process import garbage_collection

garbage_collection.collect_rarely()
made = [[] for _ in range(1000)]
garbage_collection.collect_as_usual()
assert any(found is made for found in gc.get_objects(generation=2)) and len(gc.get_objects(generation=0)) < 1000
assert gc.get_freeze_count() == 0
gc.freeze()  # as a fork server, or a script
gc.set_threshold(*garbage_collection._RARELY)
hidden = gc.get_freeze_count()
garbage_collection.collect_as_usual()
assert gc.get_freeze_count() == hidden
gc.unfreeze()
garbage_collection.hide_objects()
assert gc.get_freeze_count() >= hidden
gc.get_freeze_count = None  # would walk over all of them
garbage_collection.collect_rarely()
"""


def test_objects_count_as_old_unless_they_are_hidden():
    done = subprocess.run([sys.executable, "-c", AGED], check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


FULL_COLLECTIONS = """
import gc
from cotenant.tracing.process import garbage_collection

full = []
gc.callbacks.append(lambda phase, info: full.append(phase) if info["generation"] == 2 and phase == "start" else None)
garbage_collection.collect_rarely()
old = [[] for _ in range(290_000)]
garbage_collection.collect_as_usual()
young = [[] for _ in range(50_000)]
assert not full
young += [[] for _ in range(75_000)]
assert len(full) == 1
"""


@pytest.mark.skipif(sys.version_info >= (3, 13), reason="since 3.13 collections are divided otherwise")
def test_all_objects_are_looked_at_when_a_quarter_of_them_is_new():
    done = subprocess.run([sys.executable, "-c", FULL_COLLECTIONS], check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


SKLEARN_IN_GENERATION = """
import sys, types
from cotenant.tracing.patches import deferred_imports
from cotenant.tracing.patches.registry import PatchTable
import transformers.utils.import_utils as utils

table = PatchTable(entry for entry in deferred_imports.patches(None) if "sklearn" in entry.target)
table.apply()
assert utils.is_sklearn_available()
from transformers.data import metrics
from transformers.generation import candidate_generator
assert "sklearn" not in sys.modules and candidate_generator.is_sklearn_available()
false, true, _ = candidate_generator.roc_curve([0, 1], [0.1, 0.9])
assert "sklearn" in sys.modules and list(true)[-1] == 1.0
assert metrics.f1_score([0, 1], [0, 1]) == 1.0 and metrics.pearsonr([0, 1], [0, 1])[0] == 1.0
"""


def test_generation_imports_scikit_learn_when_it_is_used():
    pytest.importorskip("transformers")
    pytest.importorskip("sklearn")
    subprocess.run([sys.executable, "-c", SKLEARN_IN_GENERATION], check=True)


def test_operators_are_described_with_the_line_of_their_caller():
    from torch._library import utils

    from cotenant.tracing.patches import torch_import

    patch = next(entry for entry in torch_import.patches() if "get_source" in entry.target)
    assert patch.replacement(1) == utils.get_source(1)


def test_the_module_of_a_frame_is_found_without_the_files_of_others(monkeypatch):
    from cotenant.tracing.patches import torch_import

    patch = next(entry for entry in torch_import.patches() if entry.target == "inspect:getmodule")

    def not_called(*_: object) -> object:
        raise AssertionError("the files of all modules were read")

    here = sys._getframe()
    assert patch.replacement(not_called)(here) is sys.modules[__name__] is inspect.getmodule(here)
    without_module = eval("(lambda: sys._getframe())()", {"sys": sys, "__name__": "json"})
    assert patch.replacement(inspect.getmodule)(without_module) is inspect.getmodule(without_module)
    assert patch.replacement(inspect.getmodule)(inspect.getmodule) is inspect
