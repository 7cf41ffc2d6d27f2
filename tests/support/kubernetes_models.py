"""Objects of Kubernetes, read by the models of its official client."""

from __future__ import annotations

import json

import pytest


def read_object(kind, found):
    """`found` as the client's class `kind`, which refuses what the API does not have; skips without the package."""
    client = pytest.importorskip("kubernetes.client", reason="needs the package kubernetes, 36 or newer")
    return client.ApiClient().deserialize(json.dumps(found), kind, "application/json")
