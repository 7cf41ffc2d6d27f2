"""The admission webhook over real TLS, asked as an API server asks."""

from __future__ import annotations

import base64
import contextlib
import http.client
import json
import re
import shutil
import signal
import ssl
import subprocess

import pytest

from cotenant.kubernetes.admission import review
from cotenant.kubernetes.pods import PatchOperation, apply_patch
from sites import COTENANT, TIMEOUT_S
from support.kubernetes_models import read_object

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl, to make a certificate")


@contextlib.contextmanager
def webhook(folder, sharing):
    """A connection to a webhook that is served until the end of the block."""
    cert, key, log = folder / "tls.crt", folder / "tls.key", folder / "log"
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"),
            *("-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost", "-keyout", key, "-out", cert),
        ],
        check=True,
        capture_output=True,
        timeout=TIMEOUT_S,
    )
    files = ("--cert", str(cert), "--key", str(key), "--bind", "127.0.0.1", "--port", "0")
    with log.open("wb") as output:
        process = subprocess.Popen(
            [*COTENANT, "k8s", "webhook", "--sharing", sharing, *files, "--json"],
            stdout=subprocess.PIPE,
            stderr=output,
        )
    try:
        announced = b""
        while not announced.endswith(b"}\n"):
            line = process.stdout.readline()
            assert line, log.read_text()
            announced += line
        found = re.fullmatch(r"https://127\.0\.0\.1:(\d+)/mutate", json.loads(announced)["url"])
        trusted = ssl.create_default_context(cafile=cert)
        connection = http.client.HTTPSConnection("localhost", int(found[1]), context=trusted, timeout=TIMEOUT_S)
        with contextlib.closing(connection):
            yield connection
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(TIMEOUT_S)
        process.stdout.close()


def post(connection, body):
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    connection.request("POST", "/mutate?timeout=10s", data, {"content-type": "application/json"})
    answer = connection.getresponse()
    return answer.status, json.loads(answer.read())


def review_of(pod, operation="CREATE"):
    """A review as the API server sends it. Source: Kubernetes' page "Dynamic Admission Control", 2026."""
    return {
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "request": {
            "uid": "705ab4f5-6393-11e8-b7cc-42010a800002",
            "kind": {"group": "", "version": "v1", "kind": "Pod"},
            "resource": {"group": "", "version": "v1", "resource": "pods"},
            "requestKind": {"group": "", "version": "v1", "kind": "Pod"},
            "requestResource": {"group": "", "version": "v1", "resource": "pods"},
            "name": "",
            "namespace": "team-a",
            "operation": operation,
            "userInfo": {"username": "system:serviceaccount:kube-system:job-controller", "groups": ["system:masters"]},
            "object": pod,
            "oldObject": None,
            "options": {"apiVersion": "meta.k8s.io/v1", "kind": "CreateOptions"},
            "dryRun": False,
        },
    }


def pod_of(annotation="5120", **container):
    annotations = {} if annotation is None else {"cotenant/gpu-memory-mib": annotation}
    gpu = {"limits": {"nvidia.com/gpu": "1", "cpu": "4"}, "requests": {"nvidia.com/gpu": "1"}}
    main = {"name": "main", "image": "i", "resources": gpu, **container}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"generateName": "train-", "annotations": annotations},
        "spec": {"containers": [{"name": "logs", "image": "busybox", "resources": {}}, main], "restartPolicy": "Never"},
    }


def patched(answer, uid="705ab4f5-6393-11e8-b7cc-42010a800002"):
    """The operations in an answer, which allows the pod."""
    assert {name: answer[name] for name in ("apiVersion", "kind")} == {
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
    }
    response = answer["response"]
    assert (response["uid"], response["allowed"]) == (uid, True)
    assert ("patch" in response) == ("patchType" in response)
    return json.loads(base64.b64decode(response["patch"])) if "patch" in response else []


def test_pods_get_what_hami_requires(tmp_path):
    with webhook(tmp_path, "hami") as connection:
        memory = "/spec/containers/1/resources/limits/nvidia.com~1gpumem"
        status, answer = post(connection, review_of(pod_of()))
        assert (status, patched(answer)) == (200, [{"op": "add", "path": memory, "value": "5120"}])
        for pod in (pod_of(None), pod_of(resources={}), {"kind": "Pod"}, None, [], {"kind": "Service"}):
            status, answer = post(connection, review_of(pod))
            assert (status, patched(answer)) == (200, []), pod
            assert "warnings" not in answer["response"], pod
        assert patched(post(connection, review_of(pod_of(), "UPDATE"))[1]) == []
        hostile = (
            (pod_of("all of it"), "wanted a number of MiB"),
            (pod_of("99999999999999999999"), "wanted a number of MiB"),
            (pod_of(resources="all"), "`resources` is no object"),
            (pod_of(resources={"limits": {"nvidia.com/gpu": "x" * 10**5}}), "is no number of GPUs"),
        )
        for pod, why in hostile:
            _, answer = post(connection, review_of(pod))
            assert patched(answer) == []
            (warning,) = answer["response"]["warnings"]
            assert why in warning
            assert len(warning) <= 256
        for body in (b"", b"{", b"[" * 10**5, b"[]", b'{"kind": "AdmissionReview"}', {**review_of({}), "kind": "Pod"}):
            status, answer = post(connection, body)
            assert (status, list(answer)) == (400, ["message"]), body
        assert post(connection, b" " * (5 * 2**20))[0] == 413
        connection.close()
        connection.request("GET", "/healthz")
        assert connection.getresponse().read() == b"ok"


def test_pods_get_what_kai_requires(tmp_path):
    with webhook(tmp_path, "kai") as connection:
        assert patched(post(connection, review_of(pod_of()))[1]) == [
            {"op": "add", "path": "/metadata/annotations/gpu-memory", "value": "5120"},
            {"op": "remove", "path": "/spec/containers/1/resources/limits/nvidia.com~1gpu"},
            {"op": "remove", "path": "/spec/containers/1/resources/requests/nvidia.com~1gpu"},
            {"op": "add", "path": "/spec/schedulerName", "value": "kai-scheduler"},
        ]


def test_files_that_are_no_certificate_are_refused(tmp_path):
    (tmp_path / "x").write_text("nothing")
    files = ("--cert", str(tmp_path / "x"), "--key", str(tmp_path / "x"), "--port", "0")
    done = subprocess.run(
        [*COTENANT, "k8s", "webhook", "--sharing", "kai", *files], capture_output=True, check=False, timeout=TIMEOUT_S
    )
    assert done.returncode == 2
    assert b"are no certificate and its key" in done.stderr


def test_a_patched_pod_is_one_for_the_official_client():
    for sharing in ("hami", "kai", "whole"):
        pod = pod_of()
        for operation in patched(review(review_of(pod), sharing)):
            keys = [word.replace("~1", "/").replace("~0", "~") for word in operation["path"].split("/")[1:]]
            path = tuple(int(word) if word.isdecimal() else word for word in keys)
            apply_patch(pod, [PatchOperation(op=operation["op"], path=path, value=operation.get("value"))])
        found = read_object("V1Pod", pod)
        limits = {name: str(value) for name, value in found.spec.containers[1].resources.limits.items()}
        assert (
            limits
            == {
                "hami": {"cpu": "4", "nvidia.com/gpu": "1", "nvidia.com/gpumem": "5120"},
                "kai": {"cpu": "4"},
                "whole": {"cpu": "4", "nvidia.com/gpu": "1"},
            }[sharing]
        )
