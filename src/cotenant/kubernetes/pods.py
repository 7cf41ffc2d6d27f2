"""What a pod requests of GPUs, and the changes that give its containers the memory that they need.

Pure: a pod is the JSON object of Kubernetes, a change is an operation of JSON Patch (RFC 6902). HAMi caps a container
at `nvidia.com/gpumem`, in MiB for each of its GPUs. KAI shares a GPU by an annotation of a pod that requests no whole
one.

Sources: HAMi, docs/config.md, "Container resource"; KAI-Scheduler, docs/gpu-sharing/README.md.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from cotenant.core.errors import UsageError

Sharing = Literal["hami", "kai", "whole"]
"""What shares GPUs in a cluster; `whole`: nothing does."""

GPU, GPU_MEMORY = "nvidia.com/gpu", "nvidia.com/gpumem"
MEMORY_ANNOTATION = "cotenant/gpu-memory-mib"
"""What the containers of a pod need on each GPU, whatever shares GPUs in the cluster; the webhook reads it."""
KAI_ANNOTATION, KAI_SCHEDULER = "gpu-memory", "kai-scheduler"
KAI_FRACTION = "gpu-fraction"
MAX_MEMORY_MIB = 2**24


@dataclass(frozen=True, slots=True, kw_only=True)
class PatchOperation:
    """An operation of JSON Patch. `path`: keys and indices from the pod down; `value`: None to remove."""

    op: Literal["add", "remove"]
    path: tuple[str | int, ...]
    value: Any = None

    def as_json(self) -> dict[str, Any]:
        """As RFC 6902 writes it."""
        pointer = "".join(f"/{str(word).replace('~', '~0').replace('/', '~1')}" for word in self.path)
        return {"op": self.op, "path": pointer, **({} if self.op == "remove" else {"value": self.value})}


def find_pods(manifest: Any) -> Iterator[Any]:
    """The pods and templates of pods in a manifest of any kind: objects with `spec.containers`."""
    if isinstance(manifest, Mapping):
        spec = manifest.get("spec")
        if isinstance(spec, Mapping) and isinstance(spec.get("containers"), Sequence):
            yield manifest
            return
        for value in manifest.values():
            yield from find_pods(value)
    elif isinstance(manifest, Sequence) and not isinstance(manifest, str):
        for value in manifest:
            yield from find_pods(value)


def requested_gpus(container: Mapping[str, Any]) -> int:
    """GPUs that a container requests; 0 without a request.

    Raises:
        UsageError: the number cannot be read.
    """
    resources = _object(container, "resources")
    text = str(_object(resources, "limits").get(GPU, _object(resources, "requests").get(GPU, 0)))
    if not re.fullmatch(r"\d{1,4}", text, re.ASCII):
        raise UsageError(f"`{GPU}: {text[:40]}` is no number of GPUs")
    return int(text)


def gpu_containers(pod: Mapping[str, Any]) -> list[int]:
    """Indices of the containers that request GPUs."""
    return [index for index, container in enumerate(_containers(pod)) if requested_gpus(container)]


def annotated_memory_mib(pod: Mapping[str, Any]) -> int | None:
    """The annotation of a pod; None without one.

    Raises:
        UsageError: it is no number of MiB.
    """
    found = _object(_object(pod, "metadata"), "annotations").get(MEMORY_ANNOTATION)
    if found is None:
        return None
    if not (isinstance(found, str) and re.fullmatch(r"[1-9]\d{0,7}", found, re.ASCII) and int(found) <= MAX_MEMORY_MIB):
        raise UsageError(f"annotation `{MEMORY_ANNOTATION}: {str(found)[:40]}`, wanted a number of MiB as a string")
    return int(found)


def memory_patch(
    pod: Mapping[str, Any], memory_mib: Mapping[int, int], sharing: Sharing
) -> tuple[list[PatchOperation], list[str]]:
    """The operations that give containers their memory, and sentences for what they leave as it is.

    `memory_mib`: on each GPU, by index of the container. What a user has set already stays.
    """
    operations: list[PatchOperation] = []
    notes: list[str] = []
    for index, needed in memory_mib.items():
        container = _containers(pod)[index]
        name = container.get("name", index)
        gpus = requested_gpus(container)
        limits = _object(_object(container, "resources"), "limits")
        if sharing == "hami" and GPU_MEMORY in limits:
            notes.append(f"container {name} has `{GPU_MEMORY}: {limits[GPU_MEMORY]}` already")
        elif sharing == "kai" and (gpus > 1 or len(memory_mib) > 1):
            notes.append(f"container {name} keeps its whole GPUs: KAI shares one GPU for one container of a pod")
        elif sharing == "kai":
            found, why = _kai_patch(pod, index, needed)
            operations += found
            notes += why
        else:
            values = ({GPU: "1"} if not gpus else {}) | ({GPU_MEMORY: str(needed)} if sharing == "hami" else {})
            operations += _add_all(pod, ("spec", "containers", index, "resources", "limits"), values)
    return operations, notes


def annotation_patch(pod: Mapping[str, Any], memory_mib: int) -> list[PatchOperation]:
    """The operations that write what a pod needs into its annotation, in place of an older one."""
    return _add_all(pod, ("metadata", "annotations"), {MEMORY_ANNOTATION: str(memory_mib)})


def _kai_patch(pod: Mapping[str, Any], index: int, needed: int) -> tuple[list[PatchOperation], list[str]]:
    annotations = _object(_object(pod, "metadata"), "annotations")
    for name in (KAI_ANNOTATION, KAI_FRACTION):
        if name in annotations:
            return [], [f"the pod has `{name}: {annotations[name]}` already"]
    operations = _add_all(pod, ("metadata", "annotations"), {KAI_ANNOTATION: str(needed)})
    resources = _object(_containers(pod)[index], "resources")
    operations += [
        PatchOperation(op="remove", path=("spec", "containers", index, "resources", kind, GPU))
        for kind in ("limits", "requests")
        if GPU in _object(resources, kind)
    ]
    if not _object(pod, "spec").get("schedulerName"):
        operations.append(PatchOperation(op="add", path=("spec", "schedulerName"), value=KAI_SCHEDULER))
    return operations, []


def _add_all(pod: Mapping[str, Any], path: tuple[str | int, ...], values: Mapping[str, Any]) -> list[PatchOperation]:
    """Operations that add `values` to the object at `path`, which they make where it is absent: JSON Patch does not."""
    here: Any = pod
    for depth, word in enumerate(path):
        found = here[word] if isinstance(word, int) else here.get(word)
        if not found and not isinstance(word, int):
            missing: Any = dict(values)
            for key in reversed(path[depth + 1 :]):
                missing = {key: missing}
            return [PatchOperation(op="add", path=path[: depth + 1], value=missing)] if values else []
        here = found
    return [PatchOperation(op="add", path=(*path, name), value=value) for name, value in values.items()]


def apply_patch(pod: Any, operations: Sequence[PatchOperation]) -> None:
    """Apply operations to `pod`, in place."""
    for operation in operations:
        here = pod
        for word in operation.path[:-1]:
            here = here[word]
        if operation.op == "remove":
            del here[operation.path[-1]]
        else:
            here[operation.path[-1]] = operation.value


def _containers(pod: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    found = _object(pod, "spec").get("containers")
    if not isinstance(found, Sequence) or not all(isinstance(container, Mapping) for container in found):
        raise UsageError("`spec.containers` is no list of objects")
    return found


def _object(parent: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """The object `name` of another; empty where it is absent or null.

    Raises:
        UsageError: it is something else.
    """
    found = parent.get(name)
    if found is None:
        return {}
    if not isinstance(found, Mapping):
        raise UsageError(f"`{name}` is no object")
    return found
