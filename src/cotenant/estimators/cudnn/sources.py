"""The convolutions of a trace that reach cuDNN, and what an estimate says of the sources of their workspaces."""

from __future__ import annotations

from collections import Counter

from cotenant.core.trace import LibraryCall, MemoryTrace
from cotenant.estimators.cudnn import trees
from cotenant.estimators.cudnn.query import CudnnQuery, CudnnWorkspaces, version_text
from cotenant.estimators.cudnn.table import cudnn_of_torch, cudnn_table, is_cudnn_known
from cotenant.estimators.cudnn.workspaces import ConvRule
from cotenant.gpu_specs import GpuSpec
from cotenant.tracing.convolution_backend import runs_on_cudnn


def cudnn_calls(trace: MemoryTrace, gpu: GpuSpec) -> list[LibraryCall]:
    """The convolutions of `trace` that reach cuDNN on `gpu`."""
    calls = (op for op in trace.ops if op.kind.startswith("conv"))
    return [op for op in calls if runs_on_cudnn(op.params, gpu.compute_capability)]


def workspace_sources(trace: MemoryTrace, gpu: GpuSpec, cudnn_workspaces: CudnnWorkspaces | None) -> str | None:
    """The sources of the workspaces of cuDNN's convolutions in `trace`, as a sentence; None without any."""
    version = cudnn_of_torch(trace.header.torch_version)
    rule = ConvRule(
        capability=gpu.compute_capability,
        sm_count=gpu.sm_count,
        cudnn_workspaces=cudnn_workspaces,
        version=version,
        other_sizes=is_cudnn_known(trace.header.torch_version),
    )
    found = Counter(rule.source_of(op) for op in cudnn_calls(trace, gpu))
    if not found:
        return None
    table = cudnn_table(gpu.compute_capability, version)
    names = {
        "cudnn": "" if cudnn_workspaces is None else f"{version_text(cudnn_workspaces.version)} of its environment",
        "table": "" if table is None else f"shipped answers of {version_text(table.version)}",
        "trees": f"trees fitted to {version_text(trees.VERSION)}",
        "other size": "those for images of another size",
        "rule": "rule",
    }
    parts = ", ".join(f"{name} for {found[source]}" for source, name in names.items() if found[source])
    hint = "; `cotenant doctor` shows how to query cuDNN" if cudnn_workspaces is None and set(found) - {"table"} else ""
    return f"workspaces of {found.total()} calls to cuDNN: {parts}{hint}"


def benchmark_warnings(trace: MemoryTrace, gpu: GpuSpec, cudnn_workspaces: CudnnWorkspaces | None) -> tuple[str, ...]:
    """What is not known of a job with `cudnn.benchmark`, as a sentence; none for other jobs."""
    calls = [op for op in cudnn_calls(trace, gpu) if op.params.get("benchmark")]
    if not calls:
        return ()
    what = "`cudnn.benchmark` measures plans, which takes their largest workspace for each convolution"
    known = cudnn_workspaces is not None and all(map(cudnn_workspaces.plans, calls))
    return (f"{what}; " + ("which plans are the fastest is not known" if known else "their sizes are by a rule"),)


def query_warnings(queried: CudnnQuery) -> tuple[str, ...]:
    """Why the job's cuDNN did not answer for all convolutions, as a sentence; none where it did."""
    if not queried.failure:
        return ()
    which = "convolutions" if queried.workspaces is None else "some convolutions"
    return (f"the cuDNN of the job's environment gave no answer for {which}: {queried.failure}",)
