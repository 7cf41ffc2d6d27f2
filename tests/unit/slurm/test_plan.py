"""What a submission to Slurm adds to the options of its user."""

from __future__ import annotations

import pytest

from cotenant.core.units import GiB
from cotenant.jobfiles.sbatch import header_words, split_options
from cotenant.slurm.gpu_request import last_values, read_gpu_request
from cotenant.slurm.plan import ShardSize, plan_submission
from cotenant.slurm.shards import GpuShards, parse_node_gres

A100 = ShardSize(shards=GpuShards(type="", per_gpu=40), bytes=GiB)


def planned(line, header="", *, gib=9.0, size=A100, addition="shards", env=None):
    words, _ = header_words(f"#!/bin/sh\n#SBATCH {header}\n")
    settings = split_options(line.split())[0]
    values = last_values(split_options([word.text for word in words])[0], settings, env or {})
    bound = None if gib is None else int(gib * GiB)
    return plan_submission(
        settings, read_gpu_request(values), bound, size, addition=addition, has_comment="comment" in values
    )


@pytest.mark.parametrize(
    ("line", "header", "wanted"),
    [
        ("--gres=gpu:1", "", "--gres=shard:9"),
        ("--gres gpu", "", "--gres=shard:9"),
        ("", "--gres=gpu:1", "--gres=shard:9"),
        ("-G1 -t 5", "", "--time=5 --gres=shard:9"),
        ("-t 5", "--gpus=1", "--time=5 --gpus=0 --gres=shard:9"),
        ("", "--gpus-per-node=1", "--gpus-per-node=0 --gres=shard:9"),
        ("-G 1", "--gpus=1", "--gres=shard:9"),
        ("", "--gpus-per-task=1 -n 1", "--gpus-per-task=0 --gres=shard:9"),
        ("", "--gres=gpu:1,disk:7", "--gres=shard:9,disk:7"),
        ("--gres=gpu:1 -N 1", "", "--nodes=1 --gres=shard:9"),
    ],
)
def test_shards_replace_one_gpu(line, header, wanted):
    found = planned(line, header)
    # An option of the header that was also on the command line is dropped there, and must be taken back in the header.
    assert found.shards == 9
    assert " ".join(found.words) == wanted
    assert found.promised_bytes == 9 * GiB


@pytest.mark.parametrize(
    ("line", "header", "why"),
    [
        ("", "", "it requests no GPU"),
        ("--gres=gpu:2", "", "not exactly one GPU"),
        ("--gres=gpu:1", "-G 2", "not exactly one GPU"),
        ("-G a100:1", "--gres=gpu:h100:1", "not exactly one GPU"),
        ("-G 1 -N 2", "", "not exactly one GPU"),
        ("-G 1 -N 1-2", "", "not exactly one GPU"),
        ("-G a100:1,h100:1", "", "not exactly one GPU"),
        ("-G 1x", "", "no shards of GPUs of type 1x"),
        ("--gpus-per-task=1 -n 2", "", "not exactly one GPU"),
        ("-G 1 --exclusive", "", "whole nodes"),
        ("-G a100:1", "", "no shards of GPUs of type a100"),
    ],
)
def test_other_requests_stay(line, header, why):
    found = planned(line, header)
    assert (found.shards, found.added) == (0, ())
    assert why in found.reasons[0]


def test_what_does_not_fit_or_is_not_known_stays():
    assert planned("-G 1", gib=40).shards == 40
    assert "41 of 40 shards" in planned("-G 1", gib=40.01).reasons[0]
    assert "not known" in planned("-G 1", gib=None).reasons[0]
    assert "no shards here" in planned("-G 1", size=None).reasons[0]
    assert planned("-G 1", gib=0.001).shards == 1


def test_the_environment_of_sbatch_counts():
    assert planned("", "-G 2", env={"SBATCH_GPUS": "1"}).shards == 9
    assert planned("", "", env={"SBATCH_GRES": "gpu:1"}).words == ("--gres=shard:9",)


def test_what_may_be_added():
    comment = "--comment=cotenant:mem=9216M,by=declared"
    assert planned("-G 1", addition="auto").added == ("--gres=shard:9", comment)
    assert planned("-G 1", addition="comment").words == ("--gpus=1", comment)
    assert planned("-G 1", addition="nothing").words == ("--gpus=1",)
    own = planned("-G 1", "--comment=mine", addition="auto")
    assert own.added == ("--gres=shard:9",)
    assert "the comment is left as it is" in own.reasons


@pytest.mark.parametrize(
    ("gres", "wanted"),
    [
        (["gpu:a100:4(S:0-1),shard:a100:160(S:0-1)"], [("a100", 40)]),
        (["gpu:2,shard:80"], [("", 40)]),
        (["gpu:g0:1,gpu:g1:1,shard:g0:40,shard:g1:24"], [("g0", 40), ("g1", 24)]),
        (["gpu:a:1,gpu:b:1,shard:20"], [("", 10)]),
        (["gpu:2,shard:80", "gpu:2,shard:40"], []),  # a shard is not the same everywhere
        (["gpu:8(S:0-1)", "(null)", "gpu:a100:no_consume:4"], []),
        (["shard:4"], []),
    ],
)
def test_shards_of_nodes(gres, wanted):
    assert [(shards.type, shards.per_gpu) for shards in parse_node_gres(gres)] == wanted


def test_the_memory_of_a_type_of_two_sizes_is_unknown():
    """Its 80 shards of 1 GiB were taken for 0.5 GiB each where the GPU is an A100-80GB."""
    (shards,) = parse_node_gres(["gpu:a100:4,shard:a100:320"])
    assert shards.gpu_memory_bytes is None


def test_the_memory_of_a_type_that_names_a_gpu_is_known():
    (shards,) = parse_node_gres(["gpu:h100-80gb:4,shard:h100-80gb:320"])
    assert shards.gpu_memory_bytes == pytest.approx(80 * GiB, rel=0.02)
