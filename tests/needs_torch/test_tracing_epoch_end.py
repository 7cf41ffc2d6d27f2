"""Where a trace says that the traced epoch ends, so that the estimate can go on with another one."""

from __future__ import annotations

import pytest

from traced_scripts import BIG, RARE, STEP, traced

pytest.importorskip("torch", reason="tracing needs torch")

LOADER = "for x in DataLoader(torch.ones(40, 64), 4): train(x.cuda())"
TESTED = f"""
for epoch in range(5):
    {LOADER}
    evaluate(model, 64)
"""
STAGE = """
for x in DataLoader(torch.ones(40, 64), 4):
    model(x.cuda()).sum().backward()
    optimizer.step()
"""
BEHIND = "with torch.no_grad(): model(torch.ones(6000, 64, device='cuda'))"
LATER = 4 * 6000 * 64


def end_of(tmp_path, loop):
    """(sizes of large allocations up to the end of the epoch, behind it)."""
    trace = traced(tmp_path, "import torch\nfrom torch import nn\n" + RARE.format(loop=loop))
    at = trace.header.epoch_end
    if at is None:
        return None
    sizes = [event.bytes if event.action == "alloc" else 0 for event in trace.events]
    assert sizes[at - 1 : at + 1].count(0)  # it is inside of the trace, or at its end
    return tuple([size for size in part if size >= BIG] for part in (sizes[:at], sizes[at:]))


@pytest.mark.parametrize(
    "loop",
    [
        TESTED + BEHIND,
        TESTED.replace("range(5)", "[1, 2, 3]"),
        f"for epoch in range(5):\n    for _ in range(9): {STEP}\n    evaluate(model, 64)\n{BEHIND}",
        f"epoch = 0\nwhile epoch < 5:\n    {LOADER}\n    epoch += 1\n    evaluate(model, 64)\n{BEHIND}",
        f"for seed in range(2):{TESTED}{BEHIND}".replace("\n", "\n    "),
    ],
    ids=["left", "ended by the second epoch", "without a loader", "while", "the innermost one of two"],
)
def test_an_epoch_ends_behind_its_test(tmp_path, loop):
    before, after = end_of(tmp_path, loop)
    assert before == [4 * 5000 * 64] * 2
    assert LATER not in before
    assert after == [LATER] * 2 if BEHIND in loop else not after


@pytest.mark.parametrize(
    "loop",
    [
        TESTED.replace("range(5)", "range(1)"),
        f"for _ in range(99): {STEP}\nevaluate(model, 64)",
        LOADER,
        TESTED + STAGE,
    ],
    ids=["one epoch", "steps alone", "one loader", "another stage of one epoch"],
)
def test_a_training_without_another_epoch_has_no_end_of_one(tmp_path, loop):
    assert end_of(tmp_path, loop) is None
