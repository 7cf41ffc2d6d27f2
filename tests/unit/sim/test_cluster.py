"""Clusters, as people write them."""

from __future__ import annotations

import pytest

from cotenant.core.errors import CotenantError
from cotenant.core.units import MiB
from cotenant.sim import cluster


def test_a_description_of_one_server_is_parsed():
    found = cluster.parse("3xA100-40GB,1xT4-16GB")
    assert [slot.gpu_type for slot in found.slots] == ["A100-40GB"] * 3 + ["T4-16GB"]
    assert {slot.server for slot in found.slots} == {0}
    assert [slot.gpu.index for slot in found.slots] == [0, 1, 2, 3]
    assert len({slot.gpu.uuid for slot in found.slots}) == 4
    assert found.slots[0].gpu.memory_total_bytes == 40960 * MiB


def test_servers_with_gpus_of_unknown_models_are_parsed():
    found = cluster.parse("2*2xV100-32GB,3*1xG2-12.5GB,1xL4-24GB")
    assert [slot.server for slot in found.slots] == [0, 0, 1, 1, 2, 3, 4, 5]
    assert found.slots[4].gpu.memory_total_bytes == int(12.5 * 1024) * MiB


def test_gpus_name_their_server_where_there_are_several():
    several = cluster.parse("2*1xV100-32GB,1xL4-24GB")
    assert [slot.gpu.server for slot in several.slots] == ["server-0", "server-1", "server-2"]
    one = cluster.parse("1xL4-24GB")
    assert [slot.gpu.server for slot in one.slots] == [""]


def test_mig_instances_are_gpus_of_their_own_with_a_parent():
    found = cluster.parse("2xA100-40GB/3g.20gb+1g.5gb")
    assert [slot.gpu_type for slot in found.slots] == ["A100-40GB/3g.20gb", "A100-40GB/1g.5gb"] * 2
    assert found.slots[1].gpu.memory_total_bytes == 5_100_273_664
    parents = [slot.gpu.mig_parent for slot in found.slots]
    assert parents[0] == parents[1] != parents[2] == parents[3]
    assert all(slot.is_mig for slot in found.slots)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("A100", "`A100` does not describe GPUs"),
        ("0xA100-40GB", "`0xA100-40GB` is 0 GPUs"),
        ("2000*1000xA100-40GB", "is 2000000 GPUs"),
        ("4xA100", "no GPU type named `A100`"),
        ("1xA100-40GB/4g.20gb+4g.20gb", "do not fit on one GPU: 4g.20gb, 4g.20gb"),
        ("1xA100-40GB/3g.20gb+3g.20gb+1g.5gb", "do not fit on one GPU"),
        ("1xL4-24GB/1g.6gb", "no MIG profile of L4-24GB named `1g.6gb`"),
        ("1xA100-40GB/5g.20gb", "no MIG profile of A100-40GB named `5g.20gb`"),
    ],
)
def test_a_wrong_description_is_refused(text, said):
    with pytest.raises(CotenantError) as caught:
        cluster.parse(text)
    assert said in caught.value.message
