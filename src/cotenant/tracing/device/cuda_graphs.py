"""CUDA graphs: a capture runs the code once with a private memory pool; a replay allocates nothing.

The pool is a stream with a negative number: the allocator neither releases its cached blocks nor uses them elsewhere.
Captures run on a stream of their own, which has one cuBLAS workspace, in the pool of the first; or on one that the
script chose, which may have a workspace outside of the pool (from torch 2.14 on so in `make_graphed_callables`).
Not modeled: the driver's memory for the graph, and the release of a pool with its last graph.
Source: torch/cuda/graphs.py, whose `make_graphed_callables` runs unchanged; c10/cuda/CUDACachingAllocator.cpp,
`PrivatePool`.
"""

from __future__ import annotations

import gc
import itertools
from collections.abc import Callable
from typing import Any

import torch

from cotenant.tracing.device import memory_pools
from cotenant.tracing.device.memory_pools import PoolId
from cotenant.tracing.patches.registry import Patch, Phase, patch_attributes
from cotenant.tracing.recorder import TraceRecorder
from cotenant.tracing.training.training_progress import TrainingProgress

SEEDS_WITH_FIRST_DRAW = tuple(int(part) for part in torch.__version__.split(".")[:2]) >= (2, 14)
"""A graph has a seed and an offset from its first random operator on, not from its beginning: 2.13.0, 2.14.1 and 2.15.0
on a null H100."""
_CAPTURE_WARNING = (
    "a CUDA graph was captured: its private memory pool is included, the driver's memory for the graph is not"
)


def patches(recorder: TraceRecorder, make_stream: Any, progress: TrainingProgress) -> list[Patch]:
    """What captures and replays graphs, and pools; `make_stream` gives the stream of a number."""
    numbers = itertools.count(1)

    def new_pool() -> PoolId:
        return (0, next(numbers))

    replaced = {
        "CUDAGraph": _graph_class(recorder, make_stream, new_pool, progress),
        "graph": _capture_class(recorder),
        "graph_pool_handle": new_pool,
    }
    captured = [
        patch
        for module in ("torch.cuda", "torch.cuda.graphs")
        for patch in patch_attributes(
            module, replaced, phase=Phase.DEVICE,
            reason="No driver captures a graph; a capture runs as ordinary operators in a pool of its own.",
            source="torch/cuda/graphs.py, `CUDAGraph`",
        )
    ]  # fmt: skip
    return [*captured, *memory_pools.patches(recorder, new_pool)]


def _graph_class(
    recorder: TraceRecorder, make_stream: Any, new_pool: Callable[[], PoolId], progress: TrainingProgress
) -> type:
    class Graph:
        """A CUDA graph whose replay does nothing."""

        def __init__(self, *_: object, **__: object) -> None:
            self._pool: PoolId | None = None
            self._before: Any = None
            self._seed_and_offset: list[torch.Tensor] = []

        def capture_begin(self, pool: Any = None, *_: object, **__: object) -> None:
            """Allocate from the pool until `capture_end`."""
            recorder.warn(_CAPTURE_WARNING)
            progress.is_capturing = True
            self._pool = pool if isinstance(pool, tuple) else pool.pool() if pool is not None else new_pool()
            self._before = torch.cuda.current_stream()
            torch.cuda.set_stream(make_stream(-self._pool[1]))
            if SEEDS_WITH_FIRST_DRAW:
                recorder.graph_seeds = self._make_seeds
            else:
                # On the default stream, which is not captured, so that they are not in the pool: 2.13.0 on a null H100.
                with torch.cuda.stream(make_stream(0)):
                    self._make_seeds()

        def _make_seeds(self) -> None:
            # The generator's, which each replay reads (aten/src/ATen/cuda/CUDAGeneratorImpl.cpp, `register_graph`).
            recorder.graph_seeds = None
            self._seed_and_offset = [torch.empty(1, dtype=torch.int64, device="cuda") for _ in range(2)]

        def capture_end(self) -> None:
            """Allocate as before the capture."""
            progress.is_capturing = False
            recorder.graph_seeds = None
            torch.cuda.set_stream(self._before)

        def instantiate(self) -> None:
            """Nothing to instantiate."""

        def replay(self) -> None:
            """Allocates nothing."""
            progress.graph_replayed()

        def reset(self) -> None:
            """Nothing to reset."""

        def enable_debug_mode(self) -> None:
            """Nothing to show."""

        def debug_dump(self, path: str) -> None:
            """Nothing to show."""

        def pool(self) -> PoolId:
            """The pool's id."""
            self._pool = self._pool or new_pool()
            return self._pool

    return Graph


def _capture_class(recorder: TraceRecorder) -> type:
    class Capture:
        """`torch.cuda.graph(...)`."""

        default_capture_stream: Any = None

        def __init__(self, cuda_graph: Any, pool: Any = None, stream: Any = None, *_: object, **__: object) -> None:
            self._is_chosen = stream is not None
            if stream is None:
                stream = Capture.default_capture_stream = Capture.default_capture_stream or torch.cuda.Stream()
            self.cuda_graph, self._pool, self._on_stream = cuda_graph, pool, torch.cuda.stream(stream)

        def __enter__(self) -> None:
            # `graph.__enter__` collects cyclic garbage and empties the cache, so that the pool can have the memory; the
            # first only by `force_cudagraph_gc` in versions that have it.
            if getattr(getattr(torch.compiler, "config", None), "force_cudagraph_gc", True):
                gc.collect()
            recorder.empty_cache()
            self._on_stream.__enter__()
            if self._is_chosen:
                recorder.capture_stream = recorder.streams.get(torch.cuda.current_device(), 0)
            self.cuda_graph.capture_begin(self._pool)

        def __exit__(self, *_: object) -> None:
            self.cuda_graph.capture_end()
            recorder.capture_stream = None
            self._on_stream.__exit__(None, None, None)

    return Capture
