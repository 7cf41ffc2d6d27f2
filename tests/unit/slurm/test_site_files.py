"""Lines for a site's files, and what the check finds in files that are wrong."""

from __future__ import annotations

import pytest

from cotenant.core.errors import UsageError
from cotenant.core.units import GiB
from cotenant.slurm.site_files import NodeGroup, check_site, expand_hosts, site_lines

GROUPS = (
    NodeGroup(names="n[1-2]", model="A100-40GB", memory_bytes=40 * GiB, gpus=2),
    NodeGroup(names="login", model="L4-24GB", memory_bytes=int(22.5 * GiB), gpus=1, device="/dev/fake%d"),
)


@pytest.mark.parametrize("type_of", ["model", "gpu", "none"])
def test_what_is_generated_passes_the_check(type_of):
    lines = site_lines(GROUPS, type_of)
    assert check_site("\n".join(lines.slurm_conf), "\n".join(lines.gres_conf)) == []


def test_a_shard_is_a_gib_and_a_type_names_what_was_requested():
    assert site_lines(GROUPS, "model").node_gres == {
        "n[1-2]": "gpu:a100-40gb:2,shard:a100-40gb:80",
        "login": "gpu:l4-24gb:1,shard:l4-24gb:22",
    }
    assert site_lines(GROUPS, "gpu").node_gres["n[1-2]"] == "gpu:g0:1,gpu:g1:1,shard:g0:40,shard:g1:40"
    assert site_lines(GROUPS, "none").gres_conf == (
        "AutoDetect=off",
        "NodeName=n[1-2] Name=gpu File=/dev/nvidia0",
        "NodeName=n[1-2] Name=gpu File=/dev/nvidia1",
        "NodeName=n[1-2] Name=shard Count=40 File=/dev/nvidia0",
        "NodeName=n[1-2] Name=shard Count=40 File=/dev/nvidia1",
        "NodeName=login Name=gpu File=/dev/fake0",
        "NodeName=login Name=shard Count=22 File=/dev/fake0",
    )


BESIDE_MPS = "GresTypes has `shard` and `mps`: the later plug-in removes CUDA_VISIBLE_DEVICES from jobs of the other"
GOOD = "GresTypes=gpu,shard\nSelectType=select/cons_tres\n"


@pytest.mark.parametrize(
    ("slurm_conf", "gres_conf", "found"),
    [
        pytest.param(
            "grestypes=gpu\nSelectType=select/linear\nNodeName=n1 Gres=gpu:2",
            "Name=gpu File=/dev/nvidia[0-1]",
            [
                ("problem", "slurm.conf", "GresTypes=gpu, wanted shard in it"),
                ("problem", "slurm.conf", "SelectType=select/linear cannot count shards, wanted select/cons_tres"),
                ("warning", "node n1", "has GPUs and no shards: its jobs get whole GPUs"),
            ],
            id="a site without shards",
        ),
        pytest.param(
            GOOD + "NodeName=n[1-3] Gres=gpu:2,shard:81 # odd\n",
            "Name=gpu File=/dev/nvidia[0-1]\nName=shard Count=81",
            [("problem", "node n1", "81 shards on 2 GPUs, wanted as many on each")],
            id="uneven, once for nodes that are alike",
        ),
        pytest.param(
            GOOD + "NodeName=DEFAULT \\\n  Gres=gpu:a100-40gb:1,shard:a100-40gb:40(S:0)\nNodeName=n1\n",
            "NodeName=n1 Name=gpu Type=a100-40gb File=/dev/nvidia0\nNodeName=n1 Name=shard Count=40 File=/dev/nvidia0",
            [
                (
                    "problem",
                    "node n1",
                    "shards are 40 of a100-40gb in slurm.conf and 40 in gres.conf, wanted the same",
                )
            ],
            id="a type that one file has: Slurm 24.11 would lose shards",
        ),
        pytest.param(
            GOOD + "NodeName=n1 Gres=gpu:a100-40gb:1,shard:a100-40gb:4\n",
            "",
            [
                (
                    "warning",
                    "node n1",
                    "a shard of a100-40gb is 10.00 GiB, wanted about 1: --gres=shard:N is read as N GiB elsewhere",
                )
            ],
            id="large shards",
        ),
        pytest.param(
            "GresTypes=gpu,mps,shard\nNodeName=n1 Gres=gpu:1,shard:1K",
            "Name=shard Count=1k File=/dev/nvidia0",
            [
                (
                    "warning",
                    "slurm.conf",
                    BESIDE_MPS,
                ),
                (
                    "warning",
                    "slurm.conf",
                    "no SelectType: the default before Slurm 23.11 cannot count shards, wanted select/cons_tres",
                ),
            ],
            id="mps beside shards",
        ),
        pytest.param(GOOD, "", [("problem", "slurm.conf", "no node has `Gres=gpu:...`")], id="no GPU"),
    ],
)
def test_what_is_wrong_is_found(slurm_conf, gres_conf, found):
    assert [(problem.severity, problem.where, problem.text) for problem in check_site(slurm_conf, gres_conf)] == found


def test_hosts_are_expanded_as_slurm_writes_them():
    assert expand_hosts("n[1-3,07],login,r[0-1]c[08-10]") == [
        *("n1", "n2", "n3", "n07", "login"),
        *("r0c08", "r0c09", "r0c10", "r1c08", "r1c09", "r1c10"),
    ]
    assert expand_hosts("") == []


@pytest.mark.parametrize("text", ["n[1-", "n[2-1]", "n[a-b]", "n[0-999999]", "a[0-999]b[0-999]", "NodeCount=x"])
def test_what_is_no_list_of_hosts_is_refused(text):
    with pytest.raises(UsageError):
        check_site(f"NodeName={text} Gres=gpu:1", f"Name=gpu Count={text}")
