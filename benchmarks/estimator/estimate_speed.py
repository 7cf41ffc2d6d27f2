"""Duration of an estimate, compared with profiling real training steps on the CPU as xMem does.

    python -m benchmarks.estimator.estimate_speed [--quick] [--write]

xMem (arXiv 2510.21048) trains the job for a few real steps on the CPU, with `torch.profiler` recording memory, and
analyzes the record afterwards. This benchmark times one such step, without the analysis, and a whole estimate of three
steps of the same job: trace, replays of the interval, margin. Each side runs in a process of its own with all libraries
imported, three times per job; the minimum counts. The ratio is for one step; xMem runs three or four. Memory is the
peak RSS of a fresh process per side.
"""

from __future__ import annotations

import multiprocessing
import resource
import sys
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass

from benchmarks._lib import timed_report
from cotenant.core.units import MiB

GPU = "A100-40GB"
REPEATS = 3
JOBS = {
    "ResNet-50, 16 images of 224 x 224": ("resnet50", 16),
    "MobileNetV2, 16 images of 224 x 224": ("mobilenet_v2", 16),
    "BERT-base, 8 sequences of 128 tokens": ("bert", 8),
}
QUICK_JOBS = {"MobileNetV2, 2 images of 64 x 64": ("mobilenet_v2_small", 2)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Timed:
    """Minimum seconds over several runs, and the peak RSS of their process."""

    seconds: float
    resident_bytes: int


def make_step(name: str, batch: int, device: str) -> Callable[[], None]:
    """A function that does one training step of a model on `device`: AdamW, float32."""
    import torch

    if name == "bert":
        import transformers

        model = transformers.BertForSequenceClassification(transformers.BertConfig())
        inputs = {"input_ids": torch.randint(0, 30_000, (batch, 128)), "labels": torch.zeros(batch, dtype=torch.int64)}

        def loss_of() -> torch.Tensor:
            return model(**{key: value.to(device) for key, value in inputs.items()}).loss

    else:
        import torchvision

        model = torchvision.models.get_model(name.removesuffix("_small"))
        side = 64 if name.endswith("_small") else 224
        images, labels = torch.randn(batch, 3, side, side), torch.zeros(batch, dtype=torch.int64)

        def loss_of() -> torch.Tensor:
            return torch.nn.functional.cross_entropy(model(images.to(device)), labels.to(device))

    model.train()
    model.to(device)
    optimizer = torch.optim.AdamW(model.parameters())

    def step() -> None:
        optimizer.zero_grad()
        loss_of().backward()
        optimizer.step()

    return step


def time_profiled_step(name: str, batch: int, repeats: int) -> Timed:
    """Time real training steps on the CPU under the profiler settings of xMem."""
    import torch

    step = make_step(name, batch, "cpu")
    times = []
    for _ in range(repeats):
        began_s = time.perf_counter()
        with torch.profiler.profile(
            activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True, record_shapes=True, with_stack=True
        ):
            step()
        times.append(time.perf_counter() - began_s)
    return Timed(seconds=min(times), resident_bytes=_peak_rss_bytes())


def time_estimate(name: str, batch: int, repeats: int) -> Timed:
    """Time estimates of the same job; the job builds the model and moves it to the GPU, as a script does."""
    from cotenant.estimators.api import explain

    def job() -> None:
        if not steps:
            steps.append(make_step(name, batch, "cuda"))
        steps[0]()

    steps: list[Callable[[], None]] = []
    times = []
    for _ in range(repeats):
        began_s = time.perf_counter()
        explain(job, gpu=GPU)
        times.append(time.perf_counter() - began_s)
    return Timed(seconds=min(times), resident_bytes=_peak_rss_bytes())


def _peak_rss_bytes() -> int:
    """Peak RSS of this process or of any of its children; `ru_maxrss` is in KiB on Linux."""
    return 1024 * max(resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))


def warm_up() -> None:
    """Import all libraries before the clock starts, as in a warm worker."""
    import torch
    import torch._dynamo

    library = torch.library.Library("torchvision", "FRAGMENT")
    for name in ("nms", "qnms"):  # a CUDA build of torchvision needs them to import with a CPU build of torch
        if not torch._C._jit_get_schemas_for_operator(f"torchvision::{name}"):
            library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    import torchvision
    import transformers

    warm_up.references = library, torchvision, transformers.BertForSequenceClassification  # type: ignore[attr-defined]


def measure(jobs: dict[str, tuple[str, int]], repeats: int) -> list[str]:
    """One table row per job; each side runs in a process of its own, one after the other."""
    lines = [
        "| job | estimate, s | real step under the profiler, s | ratio | estimate, MiB | real step, MiB |",
        "| --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    context = multiprocessing.get_context("spawn")
    for title, (name, batch) in jobs.items():
        found = []
        for side in (time_estimate, time_profiled_step):
            with ProcessPoolExecutor(1, mp_context=context, initializer=warm_up) as pool:
                found.append(pool.submit(side, name, batch, repeats).result())
        ours, theirs = found
        sizes = " | ".join(f"{run.resident_bytes / MiB:.0f}" for run in found)
        times = f"{ours.seconds:.2f} | {theirs.seconds:.2f} | {theirs.seconds / ours.seconds:.1f}"
        lines.append(f"| {title} | {times} | {sizes} |")
        print(lines[-1], file=sys.stderr, flush=True)
    return lines


def main() -> int:
    def lines(quick: bool) -> list[str]:
        return measure(QUICK_JOBS, 1) if quick else measure(JOBS, REPEATS)

    return timed_report.run(__doc__, "estimate_speed", "Duration of an estimate and of a real training step", lines)


if __name__ == "__main__":
    sys.exit(main())
