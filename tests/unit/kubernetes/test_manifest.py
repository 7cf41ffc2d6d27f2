"""Manifests get the memory of their containers, and nothing else changes."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from importlib.util import find_spec

import pytest

pytest.importorskip("ruamel.yaml", reason="needs ruamel.yaml")
from ruamel.yaml import YAML

from cotenant.cli.main import main
from cotenant.core.errors import UsageError
from cotenant.core.units import GiB
from cotenant.kubernetes.manifest import fill_manifest
from support.kubernetes_models import read_object

JOB = """\
# One job. # The second sentence.
apiVersion: batch/v1
kind: Job
metadata:
  name: "train"   # quoted
spec:
  backoffLimit: 3
  template:
    metadata:
      labels: {kai.scheduler/queue: team-a}
    spec:
      containers:
        - name: main
          image: 'repo/train:1'
          command: ["python", "train.py"]   # the script
          args: [--width, "4096"]
          env:
            - {name: SEED, value: "007"}
            - name: NODE
              valueFrom: {fieldRef: {fieldPath: spec.nodeName}}
          resources:
            limits:
              cpu: "4"
              nvidia.com/gpu: "1"
        - name: logs
          image: busybox
      restartPolicy: Never
"""


def five(_):
    return 5 * GiB - 1


def changed(text, sharing, bound_bytes=five):
    """Lines that go and lines that come."""
    filled, notes = fill_manifest(text, bound_bytes, sharing)
    before, after = text.splitlines(), filled.splitlines()
    assert [line for line in after if line in before] == [line for line in before if line in after]
    return [x for x in before if x not in after], [x.strip() for x in after if x not in before], notes


@pytest.mark.parametrize(
    ("sharing", "goes", "comes"),
    [
        ("hami", [], ["nvidia.com/gpumem: '5120'"]),
        (
            "kai",
            ['              nvidia.com/gpu: "1"'],
            ["annotations:", "gpu-memory: '5120'", "schedulerName: kai-scheduler"],
        ),
        ("whole", [], []),
        (None, [], ["annotations:", "cotenant/gpu-memory-mib: '5120'"]),
    ],
)
def test_a_job_gets_what_its_cluster_shares_gpus_by(sharing, goes, comes):
    assert changed(JOB, sharing) == (goes, comes, [])


@pytest.mark.parametrize("kind", ["list under its key", "documents", "cron job", "indented by four"])
def test_all_pods_of_a_file_are_filled(kind):
    pod = "spec:\n  containers:\n  - name: c\n    image: i\n    command: [python, a.py]\n"
    nested = pod.replace("\n", "\n        ").rstrip()
    text = {
        "list under its key": pod,
        "documents": f"---\nkind: Pod\n{pod}---\nkind: Service\n---\nkind: Pod\n{pod}",
        "cron job": f"kind: CronJob\nspec:\n  jobTemplate:\n    spec:\n      template:\n        {nested}\n",
        "indented by four": "spec:\n    containers:\n        # one\n        - name: c\n          image: i\n",
    }[kind]
    filled, notes = fill_manifest(text, five, "hami")
    assert notes == []
    assert filled.count("nvidia.com/gpumem: '5120'") == filled.count("nvidia.com/gpu: '1'") == text.count("containers:")
    assert [line for line in filled.splitlines() if line in text.splitlines()] == text.splitlines()


def test_the_command_of_a_container_is_read():
    seen = []
    fill_manifest(JOB, seen.append, "hami")
    (command,) = seen
    assert (command.name, command.text, command.gpus) == ("main", "python train.py --width 4096", 1)
    assert command.env == {"SEED": "007"}
    shell = JOB.replace('["python", "train.py"]', '["/bin/bash", "-ec", "cd src && python train.py $1", "sh"]')
    fill_manifest(shell, seen.append, "hami")
    assert (seen[-1].text, seen[-1].arguments) == ("cd src && python train.py $1", ("--width", "4096"))


def test_what_is_not_known_or_set_already_stays():
    assert changed(JOB, "hami", lambda _: None) == ([], [], [])
    own = JOB.replace('gpu: "1"', 'gpu: "1"\n              nvidia.com/gpumem: 700')
    assert changed(own, "hami") == ([], [], ["container main has `nvidia.com/gpumem: 700` already"])
    two = JOB.replace('gpu: "1"', "gpu: 2")
    why = "container main keeps its whole GPUs: KAI shares one GPU for one container of a pod"
    assert changed(two, "kai") == ([], [], [why])
    assert changed(two, "hami") == ([], ["nvidia.com/gpumem: '5120'"], [])
    none = JOB.replace('              nvidia.com/gpu: "1"\n', "")
    assert changed(none, "hami") == ([], [], ["a pod of several containers requests no GPU: nothing is added"])


def test_filling_twice_is_filling_once():
    for sharing in ("hami", "kai", None):
        once = fill_manifest(JOB, five, sharing)[0]
        again = fill_manifest(once, five, sharing)[0]
        if sharing != "kai":  # its first container requests no GPU any more
            assert again == once


def test_a_job_fails_when_the_same_memory_would_not_do():
    filled, notes = fill_manifest(JOB, five, "hami", has_oom_policy=True)
    job = read_object("V1Job", YAML(typ="safe").load(filled)) if find_spec("kubernetes") else None
    spec = YAML(typ="safe").load(filled)["spec"]
    assert notes == []
    assert spec["podFailurePolicy"]["rules"] == [
        {"action": "FailJob", "onExitCodes": {"containerName": "main", "operator": "In", "values": [77]}},
        {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget"}]},
    ]
    assert job is None or job.spec.pod_failure_policy.rules[0].on_exit_codes.values == [77]
    watched = ["python", "-m", "cotenant.kubernetes.watched_command", "python", "train.py"]
    assert spec["template"]["spec"]["containers"][0]["command"] == watched
    seen = []
    fill_manifest(filled, seen.append, "hami")
    assert seen[0].text == "python train.py --width 4096"
    for text, why in (
        (filled, "the job has a podFailurePolicy already"),
        (JOB.replace("Never", "OnFailure"), "no podFailurePolicy: it needs `restartPolicy: Never`"),
        (JOB.replace('command: ["python", "train.py"]', "tty: false"), "main has no `command` in the manifest"),
    ):
        again, notes = fill_manifest(text, lambda _: None, "hami", has_oom_policy=True)
        assert again == text
        assert why in notes[0]


def test_a_container_that_runs_out_of_gpu_memory_ends_with_77():
    kind = "type('OutOfMemoryError', (RuntimeError,), {'__module__': 'torch'})"
    oom = f"raise {kind}('CUDA out of memory. Tried to allocate 2.00 GiB.')"
    module = (sys.executable, "-m", "cotenant.kubernetes.watched_command")

    def run(*command):
        done = subprocess.run([*module, *command], capture_output=True, text=True, check=False, timeout=120)
        return done.returncode, done.stdout, done.stderr.splitlines()[-1:]

    python = (sys.executable, "-c")
    assert run(*python, f"print('out'); {oom}") == (
        77,
        "out\n",
        ["cotenant: out of GPU memory: exit code 77 in place of 1"],
    )
    assert run(*python, "raise SystemExit(3)") == (3, "", [])
    assert run("sh", "-c", "echo 'CUDA out of memory' >&2; exit 1") == (1, "", ["CUDA out of memory"])
    assert run("sh", "-c", "kill -9 $$")[0] == 137
    assert run("true") == (0, "", [])
    assert run("/no/such") == (127, "", ["error: cannot run `/no/such`: no such file or directory"])


def test_signals_reach_the_command():
    script = "trap 'echo got; exit 5' TERM; echo ready; while :; do sleep 0.05; done"
    command = [sys.executable, "-m", "cotenant.kubernetes.watched_command", "sh", "-c", script]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    with process.stdout:
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGTERM)
        assert process.stdout.read() == "got\n"
    assert process.wait(120) == 5


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("kind: [", "not YAML"),
        ("kind: Service\n", "no pod in it"),
        ("", "no pod in it"),
        (JOB.replace('gpu: "1"', "gpu: many"), "is no number of GPUs"),
        (JOB.replace("limits:\n", "limits: 3\n").replace('              cpu: "4"\n', "").replace(
            '              nvidia.com/gpu: "1"\n', ""), "`limits` is no object"),
    ],
)  # fmt: skip
def test_what_is_no_manifest_is_refused(text, says):
    with pytest.raises(UsageError, match=says):
        fill_manifest(text, five, "hami")


@pytest.mark.parametrize("sharing", ["hami", "kai", "whole", None])
def test_the_official_client_reads_what_is_written(sharing):
    job = read_object("V1Job", YAML(typ="safe").load(fill_manifest(JOB, five, sharing)[0]))
    pod = job.spec.template
    limits = pod.spec.containers[0].resources.limits
    expected = {"hami": ("1", "5120"), "kai": (None, None), "whole": ("1", None), None: ("1", None)}[sharing]
    assert tuple(None if (n := limits.get(x)) is None else str(n) for x in ("nvidia.com/gpu", "nvidia.com/gpumem")) == (
        expected
    )
    assert all(isinstance(value, str) for value in (pod.metadata.annotations or {}).values())
    assert pod.spec.scheduler_name == ("kai-scheduler" if sharing == "kai" else None)


def test_the_command_line_declares_or_says_why_not(tmp_path, capsys):
    path = tmp_path / "job.yaml"
    path.write_text(JOB.replace("python", "sleep").replace("train.py", "5"))
    assert main(["k8s", "manifest", str(path), "--sharing", "hami", "--gpu-mem", "5G"]) == 0
    assert "nvidia.com/gpumem: '5120'\n" in capsys.readouterr().out
    assert main(["k8s", "manifest", str(path), "--sharing", "hami", "--json"]) == 0
    said = capsys.readouterr()
    assert "container main has no Python command that could be found" in said.err
    assert json.loads(said.out)["containers"] == [{"name": "main", "gpu_memory_mib": None}]
    assert json.loads(said.out)["manifest"] == path.read_text()
