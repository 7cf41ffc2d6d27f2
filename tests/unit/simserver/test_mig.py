"""MIG instances of a simulated server: files that appear and vanish under real processes."""

from __future__ import annotations

import pytest

from cotenant.core.errors import BackendError, CotenantError, UnknownName
from cotenant.core.mig import layout_texts, parse_layout
from cotenant.simserver.backend import SimulatedBackend
from cotenant.simserver.job_progress import JobProgress
from cotenant.simserver.mig import SimulatedMig
from cotenant.simserver.server import SimulatedServer

GIB = 2**30


@pytest.fixture
def server(tmp_path):
    return SimulatedServer.create(tmp_path / "server", "1xA100-40GB/4g.20gb+3g.20gb,1xL4-24GB", time_scale=1e6)


def changed(server, *, destroy=(), create=()):
    mig = SimulatedMig(server)
    gpu = mig.gpus()[0]
    for instance in parse_layout(destroy, gpu.profiles):
        mig.destroy(gpu.uuid, instance)
    for instance in parse_layout(create, gpu.profiles):
        mig.create(gpu.uuid, instance)
    return layout_texts(mig.gpus()[0].layout)


def test_an_inventory_has_instances_in_place_of_their_gpu(server):
    backend = SimulatedBackend(server.folder)
    found = backend.inventory()
    assert [(gpu.index, gpu.mig_profile, gpu.mig_parent) for gpu in found] == [
        (0, "4g.20gb", server.uuids[0]),
        (0, "3g.20gb", server.uuids[0]),
        (1, None, None),
    ]
    assert set(backend.sample(0.0)) == {gpu.uuid for gpu in found}
    assert [gpu.index for gpu in backend.mig.gpus()] == [0]


def test_instances_are_replaced_and_a_place_keeps_its_uuid(server):
    before = {gpu.mig_profile: gpu.uuid for gpu in SimulatedBackend(server.folder).inventory()}
    assert changed(server, destroy=["4g.20gb:0"], create=["2g.10gb:0", "1g.5gb:3"]) == (
        "2g.10gb:0",
        "1g.5gb:3",
        "3g.20gb:4",
    )
    assert changed(server, destroy=["2g.10gb:0", "1g.5gb:3"], create=["4g.20gb:0"]) == ("4g.20gb:0", "3g.20gb:4")
    assert {gpu.mig_profile: gpu.uuid for gpu in SimulatedBackend(server.folder).inventory()} == before


def test_an_instance_in_use_is_not_destroyed(server):
    uuid = SimulatedBackend(server.folder).inventory()[0].uuid
    attachment = server.attach(uuid, context_bytes=GIB)
    assert SimulatedMig(server).process_ids(server.uuids[0])
    with pytest.raises(BackendError, match=r"`4g\.20gb:0` is in use"):
        changed(server, destroy=["4g.20gb:0"])
    attachment.detach()
    assert not SimulatedMig(server).process_ids(server.uuids[0])
    assert changed(server, destroy=["4g.20gb:0"]) == ("3g.20gb:4",)


def test_what_does_not_fit_or_does_not_exist_is_refused(server):
    with pytest.raises(CotenantError, match="overlaps"):
        changed(server, create=["1g.5gb:1"])
    with pytest.raises(BackendError, match=r"`1g\.5gb:1` does not exist"):
        changed(server, destroy=["1g.5gb:1"])


def test_no_process_attaches_to_an_instance_that_is_gone(server):
    uuid = SimulatedBackend(server.folder).inventory()[0].uuid
    number = server.index_of(uuid)
    changed(server, destroy=["4g.20gb:0"])
    with pytest.raises(UnknownName):
        server.attach(uuid, context_bytes=GIB)
    with pytest.raises(BackendError, match="this MIG instance is gone"):
        server._change(number, lambda state: state)


def test_an_instance_draws_its_share_of_the_power(server, tmp_path):
    whole = SimulatedServer.create(tmp_path / "whole", "1xA100-40GB")
    idle_w = whole.gpu(0).power_w
    number = server.index_of(SimulatedBackend(server.folder).inventory()[1].uuid)
    assert server.gpu(number).power_w == pytest.approx(idle_w * 3 / 7)


def test_a_job_is_slower_alone_on_an_instance():
    progress = JobProgress(None, [], since_s=0.0, solo_speed=0.25)
    progress._gpu_speed = lambda *_: 1.0
    progress._keys = ("own",)
    progress.advance([[]], 100.0)
    assert progress.done_s == 25.0


@pytest.mark.parametrize(
    ("gpus", "message"),
    [
        ("1xA100-40GB/4g.20gb+4g.20gb", "do not fit on one GPU"),
        ("1xA100-40GB/5g.20gb", "no MIG profile of this GPU named `5g.20gb`"),
        ("1xL4-24GB/1g.5gb", "has no MIG profiles"),
    ],
)
def test_a_layout_that_a_gpu_cannot_have_is_refused(gpus, message, tmp_path):
    with pytest.raises(CotenantError) as caught:
        SimulatedServer.create(tmp_path / "server", gpus)
    assert message in caught.value.message
    assert not (tmp_path / "server").exists()
