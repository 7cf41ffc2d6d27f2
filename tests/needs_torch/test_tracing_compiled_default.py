"""`--compiled-code auto`, the default: compiled where that works, eager where it does not, and a warning says which."""

from __future__ import annotations

import os
import sys

import pytest

from cotenant.core.errors import TraceError
from cotenant.core.ports import TraceOptions
from cotenant.estimators import traced as estimates
from cotenant.tracing.process.program import Program
from traced_scripts import A100, live_bytes, peak, traced

torch = pytest.importorskip("torch", reason="tracing needs torch")
pytestmark = pytest.mark.skipif(
    tuple(map(int, torch.__version__.split(".")[:2])) not in ((2, 10), (2, 11), (2, 13)),
    reason="the compiler of this torch was not tried",
)

MIB = 2**20
CHAIN = """
    import torch
    model = torch.nn.Linear(1024, 1024, bias=False).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    def chain(x):
        for _ in range(8):
            x = x.sin()
        return x
    {lines}
    for step in range(4):
        out = chain(model(torch.ones(1024, 1024, device="cuda")))
        {more}
        out.sum().backward()
        optimizer.step()
        optimizer.zero_grad()
"""
EAGER_BYTES = 4 * (2 + 8) * MIB  # the weight, the input, and the input of each sine
COMPILED = "chain = torch.compile(chain{})"


def chain(lines: str = COMPILED.format(""), more: str = "pass") -> str:
    return CHAIN.format(lines=lines, more=more)


def test_compiled_code_is_compiled_by_default(tmp_path):
    trace = traced(tmp_path, chain())
    assert peak(trace) < EAGER_BYTES - 15 * MIB
    assert trace.header.compiled
    assert trace.header.runs_otherwise == ()
    assert not traced(tmp_path, chain(""), steps=1).header.compiled


def test_cuda_graphs_of_compiled_code_have_one_pool(tmp_path):
    """From the second call on the input of the graph is copied there: 4 MiB, which the backward pass then saves."""
    trace = traced(tmp_path, chain(COMPILED.format(", mode='reduce-overhead'")))
    assert trace.header.runs_otherwise == ()
    in_pool = [event for event in trace.events if event.action == "alloc" and event.stream < 0]
    large = [event for event in in_pool if event.bytes >= MIB]  # the graph's seeds share no segment with them
    assert len({event.stream for event in large}) == 1
    forward = [event for event in in_pool if event.phase == "forward" and event.bytes == 4 * MIB]
    assert len(forward) == 1 + 2 * 2, "the result of each of three calls, and two copies"


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        pytest.param(COMPILED.format(", disable=True"), "", id="disabled, as on a GPU"),
        pytest.param(
            "import os; os.environ['TORCHDYNAMO_DISABLE'] = '1'\n    " + COMPILED.format(""),
            "",
            id="by the environment",
        ),
        pytest.param(COMPILED.format(", backend='aot_eager'"), "its backend is `aot_eager`", id="another compiler"),
    ],
)
def test_what_is_not_compiled_for_a_gpu_is_traced_eagerly(tmp_path, lines, words):
    trace = traced(tmp_path, chain(lines))
    assert peak(trace) >= EAGER_BYTES
    assert not trace.header.compiled
    assert [words in warning for warning in trace.warnings] == ([True] if words else [])


def test_an_untried_version_of_the_compiler_is_not_used_by_default(tmp_path, monkeypatch):
    from cotenant.tracing.training import torch_compile

    monkeypatch.setattr(torch_compile, "TRIED_VERSIONS", ((2, 0), (2, 1)))
    trace = traced(tmp_path, chain())
    assert peak(trace) >= EAGER_BYTES
    assert "compiled" in trace.header.runs_otherwise
    assert f"the compiler of torch {torch.__version__} was not tried, only 2.0, 2.1 " in trace.warnings[0]
    assert traced(tmp_path, chain(), compiled_code="inductor").header.compiled


NOTHING = """
    import torch._dynamo.convert_frame as frames
    from torch._dynamo.types import ConvertFrameReturn
    frames.CatchErrorsWrapper.__call__ = lambda *_, **__: ConvertFrameReturn()
"""


def test_a_compiler_that_makes_no_graph_is_not_taken_for_one_that_worked(tmp_path):
    """As that of torch 2.8, whose frames arrive elsewhere."""
    trace = traced(tmp_path, chain(NOTHING.strip() + "\n    " + COMPILED.format("")))
    assert peak(trace) >= EAGER_BYTES
    assert not trace.header.compiled
    assert "compiled" in trace.header.runs_otherwise
    assert "since the compiler made no graph of it" in trace.warnings[0]


def run(folder, source, **options):
    (folder / "train.py").write_text(source.replace("\n    ", "\n"))
    program = Program(python=sys.executable, kind="script", target="train.py", args=())
    return estimates.trace_program(  # in a fork of the server that tests share
        program,
        gpu=A100,
        workdir=str(folder),
        env=os.environ,
        timeout_s=200,
        options=TraceOptions(**options),
        forkserver=None,
    )


CRASHES = "import torch._inductor.compile_fx as c; c.compile_fx = lambda *_, **__: os._exit(7)"
FAILS_LATER = "assert step < 1 or out.grad_fn is None or 'Compiled' not in out.grad_fn.name(), 'a later failure'"


@pytest.mark.parametrize(
    ("lines", "more", "words"),
    [
        pytest.param(f"import os; {CRASHES}", "pass", "exit code 7", id="a compiler that crashes"),
        pytest.param("", FAILS_LATER, "a later failure", id="a script that fails after a step"),
        pytest.param("", FAILS_LATER.replace("1", "0"), "a later failure", id="a script that fails before it"),
    ],
)
def test_a_script_that_fails_only_when_compiled_is_traced_eagerly(tmp_path, lines, more, words):
    source = chain(f"{lines}\n    {COMPILED.format('')}", more)
    trace = run(tmp_path, source)
    assert not trace.partial
    assert peak(trace) >= EAGER_BYTES
    assert "compiled" in trace.header.runs_otherwise
    assert words in trace.warnings[0]
    assert "traced eagerly" in trace.warnings[0]
    if "a later" in words:
        assert run(tmp_path, source, compiled_code="eager").warnings == trace.warnings[1:]


def test_a_script_that_fails_in_any_case_says_its_own_error(tmp_path):
    with pytest.raises(TraceError, match="ZeroDivisionError"):
        run(tmp_path, chain(more="1 / 0"))


WARMS_UP = """
    import torch
    model = torch.nn.Linear(256, 256).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    def train(size):
        model(torch.ones(size, 256, device="cuda")).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    for _ in range({rounds}):
        model(torch.ones(8, 256, device="cuda")).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    for step in range(1000):
        if step % 100 == 0:
            with torch.no_grad():
                model(torch.ones(16384, 256, device="cuda"))
        model(torch.ones(8, 256, device="cuda")).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
"""


@pytest.mark.parametrize("rounds", [10, 3, 500])
def test_a_trace_goes_on_after_a_loop_that_warms_up(tmp_path, rounds):
    """Scripts compile in ten steps and restore their state; the validation of step 0, with larger batches, follows."""
    trace = traced(tmp_path, WARMS_UP.format(rounds=rounds))
    largest = max(total for _, total in live_bytes(trace))
    assert largest > 32 * MIB
    assert not any("runs only after the traced part" in warning for warning in trace.warnings)
