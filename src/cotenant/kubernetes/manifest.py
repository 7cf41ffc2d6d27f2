"""Fills a manifest: what its containers need goes in, all else stays, comments and order too."""

from __future__ import annotations

import io
import re
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from cotenant.core.errors import UsageError
from cotenant.core.units import MiB
from cotenant.kubernetes.oom_policy import add_oom_policy, unwatched
from cotenant.kubernetes.pods import (
    Sharing,
    annotation_patch,
    apply_patch,
    find_pods,
    gpu_containers,
    memory_patch,
    requested_gpus,
)

MAX_WIDTH = 10**6


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerCommand:
    """What a container runs.

    Attributes:
        text: as a line of shell, or the script of `sh -c`.
        arguments: of that script.
        workdir: `workingDir`, or empty.
        env: variables with a value in the manifest.
    """

    name: str
    text: str
    arguments: tuple[str, ...]
    workdir: str
    env: Mapping[str, str]
    gpus: int


def fill_manifest(
    text: str,
    bound_bytes: Callable[[ContainerCommand], int | None],
    sharing: Sharing | None,
    *,
    has_oom_policy: bool = False,
) -> tuple[str, list[str]]:
    """The manifest with the memory of its GPU containers, and sentences for what was left as it is.

    `bound_bytes` says what a container needs on each GPU, or None. `sharing` None: our annotation only, for a cluster
    whose webhook knows. A pod without a request for GPUs gets one if it has a single container. `has_oom_policy`: jobs
    get what `oom_policy` adds.

    Raises:
        UsageError: the text is no YAML, or has no pod.
    """
    yaml = _yaml(text)
    from ruamel.yaml.error import YAMLError

    try:
        documents = list(yaml.load_all(text))
    except YAMLError as error:
        problem = str(error).strip().replace("\n", " ")
        raise UsageError(f"not YAML: {problem}") from error
    pods = [pod for document in documents for pod in find_pods(document)]
    if not pods:
        raise UsageError("no pod in it: no object has `spec.containers`")
    notes: list[str] = []
    for document in documents:
        if has_oom_policy and isinstance(document, dict) and document.get("kind") == "Job":
            notes += add_oom_policy(document)
    for pod in pods:
        indices = gpu_containers(pod) or ([0] if len(pod["spec"]["containers"]) == 1 else [])
        if not indices:
            notes.append("a pod of several containers requests no GPU: nothing is added")
        needed = {}
        for index in indices:
            bound = bound_bytes(_command(pod["spec"]["containers"][index]))
            if bound is not None:
                needed[index] = -(-bound // MiB)
        if not needed:
            continue
        if sharing is None:
            operations, why = memory_patch(pod, needed, "whole")
            operations += annotation_patch(pod, max(needed.values()))
        else:
            operations, why = memory_patch(pod, needed, sharing)
        apply_patch(pod, operations)
        notes += why
    out = io.StringIO()
    yaml.dump_all(documents, out)
    return out.getvalue(), notes


def _command(container: Mapping[str, Any]) -> ContainerCommand:
    words = unwatched([str(word) for name in ("command", "args") for word in container.get(name) or ()])
    text = shlex.join(words)
    arguments: tuple[str, ...] = ()
    if len(words) >= 3 and re.fullmatch(r"(.*/)?(ba|da|z)?sh", words[0]) and re.fullmatch(r"-\w*c", words[1]):
        text, arguments = words[2], tuple(words[4:])
    env = {
        str(entry["name"]): str(entry["value"])
        for entry in container.get("env") or ()
        if isinstance(entry, Mapping) and "name" in entry and entry.get("value") is not None
    }
    return ContainerCommand(
        name=str(container.get("name", "")),
        text=text,
        arguments=arguments,
        workdir=str(container.get("workingDir") or ""),
        env=env,
        gpus=max(1, requested_gpus(container)),
    )


def _yaml(text: str) -> Any:
    """A reader and writer that keeps comments, order, quotes and the indentation of lists.

    Raises:
        UsageError: ruamel.yaml is not installed.
    """
    try:
        from ruamel.yaml import YAML
    except ImportError as error:
        raise UsageError("manifests need the package ruamel.yaml", hint="pip install 'cotenant[kubernetes]'") from error
    yaml = YAML()
    yaml.preserve_quotes = True
    yaml.width = MAX_WIDTH
    yaml.explicit_start = text.lstrip().startswith("---")
    # ruamel.yaml writes all objects and lists alike: indented as the first ones are.
    object_indent = _first_indent(text, r"[^\s#-]") or 2
    list_offset = _first_indent(text, "- ")
    yaml.indent(mapping=object_indent, sequence=list_offset + 2, offset=list_offset)
    return yaml


def _first_indent(text: str, start: str) -> int:
    """By how much the first line that begins with `start` is indented below the key that it belongs to; or 0."""
    found = re.search(rf"^( *)[^\s#-][^\n]*:[ \t]*\n(?:[ \t]*#[^\n]*\n)*\1( +){start}", text, re.MULTILINE)
    return len(found[2]) if found else 0
