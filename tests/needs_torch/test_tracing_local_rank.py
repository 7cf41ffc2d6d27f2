"""`python -m torch.distributed.launch` gives a script its rank as an option."""

from __future__ import annotations

import pytest

pytest.importorskip("torch", reason="tracing needs torch")

from traced_scripts import traced

LAUNCHER = ("torch.distributed.launch", "--nproc_per_node=2")
PARSE = """
import argparse, sys, torch
parser = argparse.ArgumentParser()
parser.add_argument("--size", type=int, default=1)
{options}
args = {parse}
rank = getattr(args, "local_rank", None)
x = torch.ones(args.size, 1024 * (1 if rank is None else 10 + rank), device="cuda")
torch.optim.SGD([x.requires_grad_()], lr=0.1).step()
assert not [word for word in sys.argv[1:] if "rank" in word]
"""
UNDERSCORE = "parser.add_argument('--local_rank', type=int, default=-1)"
DASH = "parser.add_argument('--local-rank', '--local_rank', type=int, default=-1)"
TWICE = """
first = argparse.ArgumentParser()
first.add_argument('--config')
_, rest = first.parse_known_args()
parser.add_argument('--local_rank', type=int, default=-1)
"""


def bytes_of(trace):
    return max(event.bytes for event in trace.events if event.action == "alloc")


@pytest.mark.parametrize(
    ("options", "parse", "rank", "warns"),
    [
        pytest.param(DASH, "parser.parse_args()", 0, False, id="both spellings"),
        pytest.param(UNDERSCORE, "parser.parse_args()", 0, True, id="the old one"),
        pytest.param(UNDERSCORE, "parser.parse_args(sys.argv[1:])", 0, True, id="from the command line"),
        pytest.param(UNDERSCORE, "parser.parse_known_args()[0]", 0, True, id="some of the options"),
        pytest.param(TWICE, "parser.parse_args(rest)", 0, True, id="by two parsers"),
        pytest.param(UNDERSCORE, "parser.parse_args(['--size=3'])", -1, False, id="other words"),
        pytest.param("", "parser.parse_args()", None, True, id="none"),
        pytest.param("", "parser.parse_known_args()[0]", None, False, id="none, among others"),
    ],
)
def test_launched_script_gets_its_local_rank(tmp_path, options, parse, rank, warns):
    source = PARSE.format(options=options, parse=parse)
    trace = traced(tmp_path, source, "--size", "3", launcher=list(LAUNCHER))
    assert bytes_of(trace) == 4 * 3 * 1024 * (1 if rank is None else 10 + rank)
    assert any("gives the script `--local-rank=0`" in warning for warning in trace.warnings) == warns


@pytest.mark.parametrize("launcher", [[*LAUNCHER, "--use-env"], ["torchrun", "--nproc-per-node=2"], []])
def test_script_gets_no_local_rank_otherwise(tmp_path, launcher):
    trace = traced(tmp_path, PARSE.format(options=UNDERSCORE, parse="parser.parse_args()"), launcher=launcher)
    assert bytes_of(trace) == 4 * 1024 * 9
    assert not trace.warnings


def test_launched_child_gets_the_option_and_its_parent_does_not(tmp_path):
    (tmp_path / "child.py").write_text(PARSE.format(options=UNDERSCORE, parse="parser.parse_args()"))
    parent = f"""
import subprocess, sys
subprocess.run([sys.executable, "-m", "torch.distributed.launch", "--nproc_per_node=2", {str(tmp_path / "child.py")!r}])
"""
    parent += PARSE.format(options=UNDERSCORE, parse="parser.parse_args()") + "assert args.local_rank == -1\n"
    trace = traced(tmp_path, parent)
    assert bytes_of(trace) == 4 * 1024 * 10
    assert not trace.partial


def test_deepspeed_puts_the_rank_before_the_arguments_of_the_script(tmp_path):
    rest = "parser.add_argument('--local_rank', type=int, default=-1); parser.add_argument('rest', nargs='...')"
    source = PARSE.format(options=rest, parse="parser.parse_args()").replace("assert not [", "assert [")
    assert bytes_of(traced(tmp_path, source, "a", "--size", "3", launcher=["deepspeed"])) == 4 * 1024 * 10
