"""Lets a Job of Kubernetes fail at once when its script runs out of GPU memory, and go on after a lost node.

Without a policy, a Job starts `backoffLimit` further pods with the same memory, which end as the first one did.
Source: batch/v1 `PodFailurePolicy`, which needs `restartPolicy: Never`.

A module of its own: one rule about manifests.
"""

from __future__ import annotations

import re
from collections.abc import MutableMapping, Sequence
from typing import Any

from cotenant.kubernetes.pods import gpu_containers
from cotenant.kubernetes.watched_command import EXIT_OOM

MODULE = "cotenant.kubernetes.watched_command"
_PYTHON = re.compile(r"(.*/)?python(3(\.\d+)?)?")


def add_oom_policy(job: MutableMapping[str, Any]) -> list[str]:
    """Give a Job a `podFailurePolicy`, and its GPU containers the command that it reads the exit code of.

    Returns sentences for what was left as it is. The image needs cotenant.
    """
    spec = job["spec"]
    pod = spec["template"]
    if "podFailurePolicy" in spec:
        return ["the job has a podFailurePolicy already"]
    if pod["spec"].get("restartPolicy") != "Never":
        return ["no podFailurePolicy: it needs `restartPolicy: Never`"]
    containers = pod["spec"]["containers"]
    indices = gpu_containers(pod) or ([0] if len(containers) == 1 else [])
    without = [str(containers[index].get("name", index)) for index in indices if not containers[index].get("command")]
    if not indices or without:
        return [f"no podFailurePolicy: {', '.join(without) or 'a GPU container'} has no `command` in the manifest"]
    rules: list[dict[str, Any]] = []
    for index in indices:
        container = containers[index]
        container["command"] = [*watched(container["command"])]
        codes = {"containerName": container["name"], "operator": "In", "values": [EXIT_OOM]}
        rules.append({"action": "FailJob", "onExitCodes": codes})
    rules.append({"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget"}]})
    spec["podFailurePolicy"] = {"rules": rules}
    return []


def watched(command: Sequence[str]) -> list[str]:
    """`command`, run by the module that says how it ended; by its own Python, if it is one."""
    python = command[0] if _PYTHON.fullmatch(str(command[0])) else "python3"
    return [python, "-m", MODULE, *command]


def unwatched(words: Sequence[str]) -> Sequence[str]:
    """The command in one that is watched."""
    return words[3:] if list(words[1:3]) == ["-m", MODULE] else words
