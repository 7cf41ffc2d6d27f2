"""The tracer, on this build of torch, requests the blocks that torch's CUDA build requested on a null GPU.

`benchmarks/estimator/oracle_goldens.py` writes the goldens. Workspaces of jobs with convolutions, which need cuDNN, are
left out. `COTENANT_ALL_GOLDENS=1` compares all goldens, which takes minutes.
"""

from __future__ import annotations

import os
import shlex
from importlib import metadata, util
from itertools import zip_longest
from pathlib import Path

import pytest

from cotenant.nullgpu import read_history

torch = pytest.importorskip("torch", reason="tracing needs torch")

ROOT = Path(__file__).resolve().parents[2]
GOLDENS = {
    about["job"]: (history, about)
    for history, about in map(read_history, sorted(ROOT.glob("tests/golden/null_gpu/*.gz")))
}
FAST = ("examples/mlp.py on A100-40GB", "examples/gpt2.py on A100-40GB", "examples/attention.py on A100-40GB")
"""Foreach optimizers; efficient attention with a mask, embeddings, dropout; flash attention, RMSNorm."""
ARCHITECTURES = (
    *(
        f"benchmarks/estimator/jobs/architecture.py {network}"
        for network in (
            "torchvision resnet18 --batch 8 on A100-40GB",
            "torchvision mobilenet_v2 --batch 8 on A100-40GB",
            "torchvision squeezenet1_1 --batch 8 on RTX3060-12GB",
            "torchvision vgg11_bn --batch 8 --channels-last on A100-40GB",
            "torchvision swin_t --batch 8 on T4-16GB",
            "torchvision convnext_tiny --batch 8 --precision bf16 --optimizer adam on A100-40GB",
            "timm vit_small_patch16_224 --batch 8 on A100-40GB",
            "timm mixer_s32_224 --batch 8 --precision fp16 --optimizer adamw-fused on A100-40GB",
            "transformers T5ForConditionalGeneration --batch 8 on RTX3060-12GB",
            "transformers DebertaV2ForMaskedLM --batch 8 --precision fp16 --optimizer adamw-fused on A100-40GB",
        )
    ),
    "examples/finetune_llm.py --layers 2 on A100-40GB",
)
"""Networks of torchvision, timm and transformers, one of a kind; the last is a Llama.

Most models of texts in transformers cannot be compared: the null GPU reads their attention masks of ones as zeros, and
the library then keeps masks that it drops on a real GPU.
"""
COMPARED = tuple(GOLDENS) if os.environ.get("COTENANT_ALL_GOLDENS") == "1" else (*FAST, *ARCHITECTURES)


def rounded(size):
    """The block that the caching allocator makes for a request."""
    return max(512, -(-size // 512) * 512)


def installed(libraries):
    return {name: metadata.version(name) if util.find_spec(name) else None for name in libraries}


@pytest.mark.parametrize("job", COMPARED)
def test_requests_are_those_of_a_cuda_build(job):
    from cotenant.estimators.api import explain

    history, about = GOLDENS[job]
    if torch.__version__.partition("+")[0] != about["torch"].partition("+")[0]:
        pytest.skip(f"the golden is of torch {about['torch']}, found {torch.__version__}")
    if installed(about["libraries"]) != about["libraries"]:
        pytest.skip(f"the golden is of {about['libraries']}, found {installed(about['libraries'])}")
    script, *arguments = shlex.split(about["command"])
    env = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "HF_HUB_OFFLINE": "1", **about["env"]}
    found = explain(ROOT / script, arguments, gpu=about["gpu"], workdir=ROOT, timeout_s=600, env=env, cache=False)
    requests = [event for event in found.traced_input.events if event.action == "alloc" and event.bytes > 0]
    workspaces = set(about.get("workspaces", ()))
    if workspaces:
        requests = [event for event in requests if event.category != "workspace"]
    wanted = [rounded(size) for place, size in enumerate(history.allocations) if place not in workspaces]
    # The estimate continues after the last step on the null GPU, which ends the script there.
    for place, (size, event) in enumerate(zip_longest(wanted, requests[: len(wanted)])):
        assert event is not None, f"{place} requests, wanted {len(wanted)}"
        assert rounded(event.bytes) == size, f"request {place}, in {event.phase}, {event.module or 'no module'}"


def test_goldens_are_small():
    assert sum(path.stat().st_size for path in ROOT.glob("tests/golden/null_gpu/*")) < 4 << 20
