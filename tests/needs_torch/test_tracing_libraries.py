"""Libraries around torch: their parameter classes, operators and files."""

import importlib.util
import json
import textwrap

import pytest

pytest.importorskip("torch", reason="tracing needs torch")

from traced_scripts import by_category, failing, traced

MiB = 2**20

TRAIN = """
for _ in range(5):
    head(torch.randn(8, 1024, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""

PACKED = """
import torch
from torch import nn

class Packed(nn.Parameter):
    def __new__(cls, data, requires_grad=False, packed=False):
        self = torch.Tensor._make_subclass(cls, data, requires_grad)
        self.packed = packed
        self.data = data
        return self

    def to(self, *args, **kwargs):
        if self.packed:
            return Packed(super().to(*args, **kwargs), packed=True)
        self.data = torch.empty(self.numel() // 2, dtype=torch.uint8, device="cuda")
        self.packed = True
        return self

model = nn.Linear(1024, 4096, bias=False)
model.weight = Packed(model.weight.data)
head = nn.Linear(1024, 4).cuda()
optimizer = torch.optim.SGD(head.parameters(), 0.1)
"""


def test_rebuilt_parameters_retain_their_library_class(tmp_path):
    checks = """
model.to("cuda")
model.to("cuda")
weight = type(model.weight)(model.weight.data, packed=True)
assert isinstance(weight, Packed) and isinstance(weight, nn.Parameter) and weight.packed and weight.is_cuda
assert isinstance(model.weight, Packed) and model.weight.packed and model.weight.dtype == torch.uint8
assert type(type(model.weight)(torch.zeros(4))) is Packed
"""
    trace = traced(tmp_path, PACKED + checks + TRAIN)
    assert not trace.partial
    assert by_category(trace)["parameter"] == 1024 * 4096 // 2 + 4 * 4 * 1024 + 4 * 4


def test_data_assigned_to_a_gpu_parameter_count_as_parameter(tmp_path):
    cast = "\nmodel.half().cuda()\nmodel.weight.data = model.weight.data.to(torch.float32)\n"
    plain = PACKED.replace("model.weight = Packed(model.weight.data)", "")
    assert by_category(traced(tmp_path, plain + cast + TRAIN))["parameter"] >= 1024 * 4096 * 4


BITSANDBYTES = """
import torch

def get_paged(*shape, dtype=torch.float32, device=torch.device("cuda", 0)):
    raise RuntimeError("no CUDA library")

def prefetch_tensor(A, to_cpu=False):
    raise RuntimeError("no CUDA library")

fill = prefetch_tensor

def optimizer_update_32bit(optimizer_name, g, p, state1, max_unorm=0.0):
    if max_unorm > 0.0:
        float(torch.norm(p.data.float()) > 2) / 0
    state1.add_(1)

def int8_vectorwise_quant(A, threshold=0.0):
    raise RuntimeError("no CUDA library")
"""


@pytest.fixture
def bitsandbytes(tmp_path):
    (tmp_path / "bitsandbytes").mkdir()
    (tmp_path / "bitsandbytes" / "__init__.py").write_text("from bitsandbytes import functional\n")
    (tmp_path / "bitsandbytes" / "functional.py").write_text(BITSANDBYTES)
    return "import bitsandbytes.functional as F\n"


def test_paged_optimizer_states_take_no_gpu_memory_and_add_a_warning(tmp_path, bitsandbytes):
    if importlib.util.find_spec("bitsandbytes") is not None:
        pytest.skip("the library itself is installed, whose place a stand-in would take")
    make = """
state = F.get_paged(1 << 20, 1 << 10, dtype=torch.float32, device=torch.device("cuda", 0))
F.fill(state, 0)
F.prefetch_tensor(state)
assert state.shape == (1 << 20, 1 << 10) and state.is_paged and state.page_deviceid == 0
"""
    trace = traced(tmp_path, PACKED + bitsandbytes + make + TRAIN)
    assert trace.warnings == (
        "paged optimizer states are managed memory, which leaves the GPU when it is full: they are not counted",
    )
    assert max(event.bytes for event in trace.events) < 32 * MiB


def test_values_that_bitsandbytes_reads_are_known(tmp_path, bitsandbytes):
    if importlib.util.find_spec("bitsandbytes") is not None:
        pytest.skip("the library itself is installed, whose place a stand-in would take")
    quantize = """
rows, scales, columns = F.int8_vectorwise_quant(torch.randn(4, 16, 1000, device="cuda").half(), threshold=6.0)
assert (rows.dtype, tuple(rows.shape)) == (torch.int8, (4, 16, 1000))
assert tuple(scales.shape) == (64,) and tuple(columns.shape) == (10,)
F.optimizer_update_32bit("lamb", head.weight, head.weight, torch.zeros(4, device="cuda"), max_unorm=1.0)
"""
    trace = traced(tmp_path, PACKED + bitsandbytes + quantize + TRAIN)
    assert len(trace.warnings) == 1
    assert "one in a hundred" in trace.warnings[0]


OPERATOR = """
library = torch.library.Library("mine", "FRAGMENT")
library.define("halves(Tensor x) -> Tensor")
library.define("found(Tensor x) -> Tensor")

@torch.library.register_fake("mine::halves")
def _(x):
    return x.new_empty(torch.library.get_ctx().new_dynamic_size())

@torch.library.register_fake("mine::found")
def _(x):
    return x.new_empty(torch.library.get_ctx().new_dynamic_size())

@torch.library.impl("mine::halves", "CompositeExplicitAutograd")
def _(x):
    return (x * 2).flatten()[: x.numel() // 2].clone()

library.impl("found", lambda x: x, "CUDA")
"""


def test_an_operator_composed_of_others_is_decomposed(tmp_path):
    use = 'assert torch.ops.mine.halves(torch.zeros(64, 64, device="cuda")).shape == (2048,)\n'
    assert not traced(tmp_path, PACKED + OPERATOR + use + TRAIN).partial


def test_an_operator_of_unknown_size_is_named(tmp_path):
    from cotenant.core.errors import TraceError

    use = 'torch.ops.mine.found(torch.zeros(64, 64, device="cuda"))\n'
    with pytest.raises(TraceError, match=r"`mine::found` cannot be traced: .*line"):
        traced(tmp_path, PACKED + OPERATOR + use + TRAIN)


def test_tokenizers_are_saved_to_the_scratch_folder(tmp_path):
    if importlib.util.find_spec("tokenizers") is None:
        pytest.skip("needs tokenizers")
    save = """
import importlib.util, os
assert importlib.util.find_spec("tokenizers") is not None
from tokenizers import Tokenizer, models
os.makedirs("checkpoint/step")
Tokenizer(models.WordLevel({"a": 0}, unk_token="a")).save("checkpoint/step/tokenizer.json")
assert Tokenizer.from_file("checkpoint/step/tokenizer.json").get_vocab() == {"a": 0}
"""
    assert not traced(tmp_path, PACKED + save + TRAIN).partial
    assert not (tmp_path / "checkpoint").exists()


def test_arrow_files_written_by_the_script_are_read(tmp_path):
    if importlib.util.find_spec("pyarrow") is not None:
        pytest.skip("the library itself is installed, whose place a stand-in would take")
    (tmp_path / "pyarrow.py").write_text(
        "import _io\nfrom _io import FileIO\ndef memory_map(path, mode='r'):\n    return FileIO(path, mode)\n"
    )
    read = """
import pyarrow
open("table.arrow", "w").write("rows")
assert pyarrow.memory_map("table.arrow").read() == b"rows"
pyarrow.memory_map("other.arrow", "w").write(b"more")
assert open("other.arrow").read() == "more"
"""
    assert not traced(tmp_path, PACKED + read + TRAIN).partial
    assert not list(tmp_path.glob("*.arrow"))


def test_transformers_can_use_tf32_if_the_gpu_has_it(tmp_path):
    if importlib.util.find_spec("transformers") is None:
        pytest.skip("needs transformers")
    lines = """
from transformers.utils import is_torch_tf32_available
assert is_torch_tf32_available() == (torch.cuda.get_device_capability()[0] > 7)
"""
    assert not traced(tmp_path, PACKED + lines + TRAIN).partial
    assert not traced(tmp_path, PACKED + lines + TRAIN, capability=(7, 5)).partial


def test_generation_ends_at_its_maximum_length(tmp_path):
    generate = """
head = nn.Linear(64, 64).cuda()

def goes_on(finished):
    if finished:
        return False
    return True

tokens = torch.zeros(8, 1, dtype=torch.long, device="cuda")
unfinished = torch.ones(8, dtype=torch.long, device="cuda")
more = True
while more:
    next_ = head(torch.randn(8, 64, device="cuda")).argmax(-1)
    tokens = torch.cat([tokens, next_[:, None]], 1)
    is_done = torch.full((8,), False, device="cuda")
    is_done = is_done | torch.full((8,), tokens.shape[1] >= 12, device="cuda")
    is_done = is_done | torch.isin(next_, torch.tensor([3], device="cuda"))
    unfinished = unfinished & ~is_done
    more = goes_on(unfinished.max() == 0)
assert tokens.shape == (8, 12)
head = nn.Linear(1024, 4).cuda()
optimizer = torch.optim.SGD(head.parameters(), 0.1)
"""
    assert not traced(tmp_path, PACKED + generate + TRAIN).partial


def test_a_missing_metric_returns_nothing_and_adds_a_warning(tmp_path):
    if importlib.util.find_spec("evaluate") is not None:
        pytest.skip("the library itself is installed, whose place a stand-in would take")
    (tmp_path / "evaluate").mkdir()
    (tmp_path / "evaluate" / "__init__.py").write_text("from evaluate.loading import load\n")
    (tmp_path / "evaluate" / "loading.py").write_text(
        "def load(path, *args, **kwargs):\n    raise FileNotFoundError(f'no module script at {path}')\n"
    )
    use = """
import evaluate
accuracy = evaluate.load("accuracy")
accuracy.add_batch(predictions=[1], references=[1])
assert accuracy.compute(predictions=[1], references=[0]) == {"accuracy": 0.0}
assert f"{accuracy.compute():.3f} {accuracy.compute()}" == "0.000 {'accuracy': 0.0}"
try:
    evaluate.load("./mine.py")
except FileNotFoundError:
    pass
else:
    raise AssertionError
"""
    trace = traced(tmp_path, PACKED + use + TRAIN)
    assert trace.warnings == ("the metric `accuracy` is not on this machine: its result is 0",)


def test_zero_3_partitions_tensors_of_the_script_and_not_of_the_tracer(tmp_path):
    if importlib.util.find_spec("deepspeed") is not None:
        pytest.skip("the library itself is installed, whose place a stand-in would take")
    folder = tmp_path / "deepspeed" / "runtime" / "zero"
    folder.mkdir(parents=True)
    for package in (folder, folder.parent, folder.parent.parent):
        (package / "__init__.py").write_text("")
    (folder / "partition_parameters.py").write_text(
        """
def zero_wrapper_for_fp_tensor_constructor(fn, target_fp_dtype, target_device):
    def wrapped_fn(*args, **kwargs):
        kwargs.setdefault("device", target_device)
        return fn(*args, **kwargs).to(target_fp_dtype)
    return wrapped_fn
"""
    )
    use = """
from deepspeed.runtime.zero import partition_parameters as zero
plain = torch.empty
torch.empty = zero.zero_wrapper_for_fp_tensor_constructor(plain, torch.float16, torch.device("cuda", 0))
assert torch.empty(4).is_cuda and torch.empty(4).dtype == torch.float16
places = torch.arange(8, device="cuda")
assert places[:, None].expand(8, 3).contiguous()[7, 2].item() == 7
torch.empty = plain
"""
    assert not traced(tmp_path, PACKED + use + TRAIN).partial


def test_a_model_built_from_its_configuration_has_its_name(tmp_path):
    if importlib.util.find_spec("transformers") is None:
        pytest.skip("needs transformers")
    config = {"model_type": "gpt2", "n_embd": 16, "n_layer": 1, "n_head": 2, "vocab_size": 50}
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text(json.dumps(config))
    load = """
from transformers import AutoModelForCausalLM
model = AutoModelForCausalLM.from_pretrained("model")
assert model.config.name_or_path == model.name_or_path == "model"
"""
    assert "not here" in traced(tmp_path, PACKED + load + TRAIN).warnings[0]


def test_layers_of_a_model_without_its_weights_are_quantized_by_the_library(tmp_path):
    if importlib.util.find_spec("transformers") is None or importlib.util.find_spec("accelerate") is None:
        pytest.skip("needs transformers and accelerate")
    (tmp_path / "model").mkdir()
    config = {"model_type": "gpt2", "n_embd": 16, "n_layer": 1, "n_head": 2, "vocab_size": 50, "n_positions": 32}
    (tmp_path / "model" / "config.json").write_text(json.dumps(config))
    load = """
from transformers import AutoModelForCausalLM
from transformers.quantizers.auto import register_quantization_config, register_quantizer
from transformers.quantizers.base import HfQuantizer
from transformers.utils.quantization_config import QuantizationConfigMixin

@register_quantization_config("bytes")
class BytesConfig(QuantizationConfigMixin):
    def __init__(self, **kwargs):
        self.quant_method = "bytes"

@register_quantizer("bytes")
class Bytes(HfQuantizer):
    requires_calibration, requires_parameters_quantization, required_packages = False, True, []
    is_trainable = True

    def is_serializable(self, safe_serialization=None):
        return True

    def check_quantized_param(self, model, param_value, param_name, state_dict, **kwargs):
        return "mlp" in param_name and "weight" in param_name

    def create_quantized_param(self, model, value, name, device, state_dict, unexpected_keys=None):
        owner, _, last = name.rpartition(".")
        made = value.to(device).to(torch.int8)
        model.get_submodule(owner)._parameters[last] = nn.Parameter(made, requires_grad=False)

    def _process_model_before_weight_loading(self, model, **kwargs):
        model.config.quantization_config = self.quantization_config

    def _process_model_after_weight_loading(self, model, **kwargs):
        return model

before = torch.cuda.memory_allocated()
model = AutoModelForCausalLM.from_pretrained(
    "model", quantization_config=BytesConfig(), dtype=torch.float16, device_map={"": 0}
)
block = model.transformer.h[0]
assert block.mlp.c_fc.weight.dtype == torch.int8 and block.mlp.c_fc.weight.is_cuda
assert block.attn.c_attn.weight.dtype == torch.float16 and block.attn.c_attn.weight.is_cuda
assert model.config.name_or_path == model.name_or_path == "model" and not model.training
small, half = 2 * 16 * 64 + 32 * 32, 2 * (50 * 16 + 32 * 16 + 4 * 16 * 16)  # the mask of attention with the former
assert small + half < torch.cuda.memory_allocated() - before < small + half + 16 * 512
"""
    assert "not here" in traced(tmp_path, PACKED + load + TRAIN).warnings[0]


def test_parameters_are_not_all_zeros(tmp_path):
    lines = "assert head.weight.any() and not (head.weight != head.weight).any()\n"
    assert not traced(tmp_path, PACKED + lines + TRAIN).partial


def test_a_failed_nested_import_names_its_cause(tmp_path):
    (tmp_path / "library.py").write_text(
        "try:\n    import absent_module\nexcept ImportError as error:\n"
        "    raise ImportError('cannot import Trainer') from error\n"
    )
    with failing("import", "ImportError: cannot import Trainer: No module named 'absent_module' (library.py, line 2)"):
        traced(tmp_path, "import library")


def test_triplets_of_labels_found_by_nonzero_add_a_warning(tmp_path):
    source = """
    import torch
    from torch import nn
    labels = (torch.arange(384) % 8).cuda()
    same = (labels[:, None] == labels[None]).byte()
    other = same ^ 1
    same.fill_diagonal_(0)
    triplets = torch.where(same.unsqueeze(2) * other.unsqueeze(1))
    assert len(triplets) == 3 and triplets[0].shape == (384 * 47 * 336,)
    both = same.bool().unsqueeze(2) & other.bool().unsqueeze(1)
    assert both.nonzero().shape == (384 * 47 * 336, 3)
    head = nn.Linear(1024, 4).cuda()
    optimizer = torch.optim.SGD(head.parameters(), 0.1)
    """
    warning = "the size that `nonzero` gives depends on the data; assumed: as many are found as were set"
    assert traced(tmp_path, textwrap.dedent(source) + TRAIN).warnings == (warning,)


def test_a_trainer_that_reports_to_a_tracker_trains_without_it(tmp_path):
    if importlib.util.find_spec("transformers") is None:
        pytest.skip("needs transformers")
    source = """
import torch
from transformers.integrations import get_reporting_integration_callbacks
from transformers.trainer_callback import CallbackHandler
model = torch.nn.Linear(8, 8).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
handler = CallbackHandler(get_reporting_integration_callbacks(["wandb"]), model, None, optimizer, None)
for _ in range(3):
    model(torch.zeros(2, 8, device="cuda")).sum().backward()
    optimizer.step()
"""
    assert not traced(tmp_path, source).partial
