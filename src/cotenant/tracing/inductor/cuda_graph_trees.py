"""CUDA graphs of compiled code (`mode="reduce-overhead"`): Inductor's trees of graphs, which share one memory pool.

The first call of a graph warms up, in the pool. The second one is recorded: inputs that are neither parameters nor
results of another graph are copied to the pool, and freed as the code frees its inputs. Later calls replay. Here they
run as the recording did, so the pool has the same blocks; of the intermediate results of a replay, which allocates
nothing, the pool holds the segments only.
Source: torch/_inductor/cudagraph_trees.py, `CUDAGraphTreeManager`, `CUDAWarmupNode`, `CUDAGraphNode` (PyTorch 2.13).
Not modeled: recordings that are repeated for other addresses, and the driver's memory for graphs.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Container, Iterator, Sequence
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from cotenant.tracing.patches.registry import Entry, Patch, PatchContext, Phase


def patches(context: PatchContext) -> list[Entry]:
    """What makes graphs of compiled code; none where compiled code is traced eagerly."""
    if context.options.compiled_code == "eager":
        return []
    trees = GraphTrees(context)
    common: dict[str, Any] = {"phase": Phase.TRAINING, "missing": "other versions than the tried ones"}
    return [
        Patch(
            target="torch._inductor.compile_fx:cudagraphify", replacement=trees.cudagraphify,
            reason="It imports CUDA graphs, which a CPU build does not have.",
            source="torch/_inductor/compile_fx.py, `cudagraphify`", **common,
        ),
        Patch(
            target="torch._inductor.cudagraph_utils:check_caching_allocator_for_cudagraphs", replacement=lambda: None,
            reason="It asks a CUDA build whether its allocator caches, since graphs need that.",
            source="torch/_inductor/cudagraph_utils.py, `check_caching_allocator_for_cudagraphs`", **common,
        ),
        Patch(
            target="torch._inductor.output_code:maybe_handle_backward_generation", replacement=lambda *_: None,
            reason="It notifies the manager of CUDA graphs, of which there is none, of the backward pass.",
            source="torch/_inductor/output_code.py, `maybe_handle_backward_generation`", **common,
        ),
    ]  # fmt: skip


class GraphTrees:
    """The graphs of one process, by device: their pool, and the tensors in it that they returned."""

    def __init__(self, context: PatchContext) -> None:
        self._context = context
        self._pools: dict[int, Any] = {}
        self._results: dict[int, StorageWeakRef] = {}

    def cudagraphify(
        self,
        model: Callable[..., Any],
        static_input_idxs: Sequence[int] = (),
        *,
        device_index: int,
        mutated_input_idxs: Sequence[int] = (),
        **_: object,
    ) -> Callable[..., Any]:
        """`model`, as Inductor calls it with a list of inputs that it empties, in CUDA graphs."""
        static, mutated = frozenset(static_input_idxs), tuple(mutated_input_idxs)
        calls = 0

        def run(inputs: list[Any]) -> Any:
            nonlocal calls
            if self._context.observer.compiling:
                return model(inputs)
            if any(index not in static and not self._is_result(inputs[index]) for index in mutated):
                return model(inputs)  # such code is not captured: `check_for_mutation` of cudagraph_utils.py
            calls += 1
            with torch.cuda.device(device_index), self._in_pool(device_index, records=calls == 2):
                if calls > 1:
                    self._copy_inputs(inputs, static)
                return self._returned(model(inputs))

        return run

    def _pool(self, device: int) -> Any:
        if device not in self._pools:
            pool = self._pools[device] = torch.cuda.graph_pool_handle()
            # Holds the pool: it is emptied of garbage and cached blocks first (`CUDAGraphTreeManager.__init__`).
            with torch.cuda.graph(torch.cuda.CUDAGraph(), pool=pool):
                pass
        return self._pools[device]

    @contextlib.contextmanager
    def _in_pool(self, device: int, *, records: bool) -> Iterator[None]:
        """Allocates from the pool; the context of a recording empties the cache of other blocks before."""
        pool, graph = self._pool(device), torch.cuda.CUDAGraph()
        if records:
            with torch.cuda.graph(graph, pool=pool):
                yield
            return
        graph.capture_begin(pool)
        try:
            yield
        finally:
            graph.capture_end()

    def _copy_inputs(self, inputs: list[Any], static: Container[int]) -> None:
        for index, value in enumerate(inputs):
            if index not in static and _is_on_gpu(value) and not self._is_result(value):
                inputs[index] = torch.empty_strided(
                    value.size(), value.stride(), dtype=value.dtype, device=value.device
                )

    def _returned(self, results: Any) -> Any:
        for value in results:
            if _is_on_gpu(value):
                storage = value.untyped_storage()
                self._results[storage._cdata] = StorageWeakRef(storage)
        return results

    def _is_result(self, value: Any) -> bool:
        if not _is_on_gpu(value):
            return False
        known = self._results.get(value.untyped_storage()._cdata)
        return known is not None and not known.expired()


def _is_on_gpu(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.is_cuda
