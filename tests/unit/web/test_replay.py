"""Replays: what their process is given, and how many run at once."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest

from cotenant.core.errors import NotPermitted, UsageError
from cotenant.core.units import GiB
from cotenant.web.pages.replay import MAX_RUNNING, ReplayPages
from cotenant.web.replay_worker import cluster_text


def a_gpu(name="NVIDIA A100-SXM4-40GB", gib=40, mig_profile=None):
    return {"name": name, "memory_total_bytes": gib * GiB, "mig_profile": mig_profile}


def test_the_gpus_of_a_server_are_those_of_its_replay():
    gpus = [a_gpu(), a_gpu(name="A100-40GB"), a_gpu(name="Unheard of", gib=23)]
    assert cluster_text(gpus) == "2xA100-40GB,1xGPU-23GB"


def test_mig_instances_are_refused():
    with pytest.raises(UsageError, match="from-journal"):
        cluster_text([a_gpu(name="NVIDIA A100-SXM4-40GB MIG 1g.5gb", gib=5, mig_profile="1g.5gb")])


@pytest.mark.parametrize("running", [{"ann"}, {f"user-{i}" for i in range(MAX_RUNNING)}])
def test_one_replay_of_a_user_and_a_few_of_all_run_at_a_time(running):
    async def form(*_, **__):
        return {"policy": "exclusive", "hours": "1"}

    async def read(*_, **__):
        return {"caller": {"name": "ann", "admin": False}, "policy": "most-memory"}

    pages = ReplayPages(SimpleNamespace(form=form, read=read))
    pages._running = set(running)
    with pytest.raises(NotPermitted):
        asyncio.run(pages.begin(None))
    assert pages._running == running
