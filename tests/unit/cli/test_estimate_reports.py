"""`cotenant estimate`: what it says beside the estimate, and what it refuses before a script is run."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cotenant.cli.estimate.batch import BatchSizeQuery
from cotenant.cli.estimate.reports import EstimateReports
from cotenant.cli.estimate.text import utilization_line
from cotenant.core.errors import CotenantError, TraceError, UsageError
from cotenant.core.ports import EstimateRequest
from cotenant.core.units import MiB
from cotenant.estimators.traced import TracedEstimator
from cotenant.gpu_specs import gpu_spec
from traces import a_trace, alloc, steps

GPU = gpu_spec("A100-40GB")
REQUEST = EstimateRequest(command=("train.py",), workdir=".", gpu="A100-40GB")


@pytest.mark.parametrize(
    ("smocc", "is_part", "line"),
    [
        (0.13, True, "of that, by layers alone: SMACT 0.38, SMOCC 0.13; learned from jobs of one server"),
        (None, False, "alone on an A100, by its layers, about SMACT 0.38; learned from jobs of one server"),
    ],
)
def test_a_second_smact_is_said_to_be_a_part_of_the_first(smocc, is_part, line):
    assert utilization_line(0.38, smocc, is_part=is_part) == line


def reports(*, plot=None, snapshot=None):
    return EstimateReports(plot=plot, snapshot=snapshot)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        pytest.param("absent/x.pickle", "no folder", id="no such folder"),
        pytest.param(".", "is a folder", id="a folder"),
        pytest.param("link.py", "it is the script", id="the script itself"),
    ],
)
def test_files_that_cannot_be_written_are_refused(tmp_path, name, message):
    script = tmp_path / "train.py"
    script.write_text("pass")
    (tmp_path / "link.py").symlink_to(script)
    with pytest.raises(UsageError, match=message):
        reports(snapshot=tmp_path / name).check_files(str(script))
    reports(snapshot=tmp_path / "x.pickle").check_files(str(script))


def test_a_plot_ends_where_the_context_begins(tmp_path, monkeypatch):
    pytest.importorskip("matplotlib", reason="drawing needs matplotlib")
    arguments = {}
    monkeypatch.setattr("cotenant.estimators.plot.save_plot", lambda path, history, **more: arguments.update(more))
    result = TracedEstimator().on(a_trace([alloc(0, 39_000)]), GPU)
    reports(plot=tmp_path / "x.svg").save_files(result, title="train.py")
    assert arguments["usable_bytes"] == result.fit.usable_bytes - result.estimate.context_bytes


def test_files_of_several_gpus_name_the_largest_gpu(tmp_path, capsys):
    events = [alloc(0, 10), alloc(1, 500)._replace(device=1)]
    result = TracedEstimator().on(a_trace(events, gpus=2), GPU)
    reports(snapshot=tmp_path / "x.pickle").save_files(result, title="train.py")
    assert "snapshot of GPU 1 in" in capsys.readouterr().err


class Scripted:
    """In place of an estimator that runs scripts: what each batch size gives, made by `trace_of`."""

    def __init__(self, trace_of):
        self.trace_of = trace_of

    def explain(self, request):
        return TracedEstimator().on(self.trace_of(int(request.command[-1])), GPU)


def search(trace_of, limit_mib):
    batch = BatchSizeQuery(argument="--batch-size", limit_bytes=limit_mib * MiB)
    return batch.search(REQUEST, Scripted(trace_of), json=True)


def test_a_batch_size_with_only_a_lower_bound_does_not_fit():
    def trace_of(size):
        whole = steps(batch_mib=size)
        return replace(whole, partial=True, warnings=("it was stopped",)) if size > 20 else whole

    _, found = search(trace_of, 30_000)
    assert found.largest == 20
    assert "it is not memory that is missing: only a lower bound: it was stopped" in found.remark


def test_without_a_fitting_batch_the_smallest_known_bound_is_named():
    def trace_of(size):
        if size == 1:
            raise TraceError("raised", "the script raised ValueError: more than one is needed")
        return steps(batch_mib=size)

    with pytest.raises(CotenantError) as caught:
        search(trace_of, 1)
    assert "with 4 the bound is 2.1 GiB; with 1" in caught.value.message
    assert caught.value.message.endswith("; with 1, the script raised ValueError: more than one is needed")


@pytest.mark.parametrize(
    ("given", "output", "hint"),
    [
        pytest.param((), "unrecognized arguments: --batch-size 8", "does the script take `--batch-size`?", id="ours"),
        pytest.param((), "ValueError: no data", "look", id="another reason"),
        pytest.param(("--batch-size", "9"), "--batch-size 9 is odd", "look", id="the user's own"),
    ],
)
def test_a_script_that_refuses_the_argument_is_asked_for_its_name(given, output, hint):
    def trace_of(_):
        raise TraceError("raised", "the script exited: exit code 2", hint="look", log_tail=output)

    batch = BatchSizeQuery(argument="--batch-size", limit_bytes=MiB)
    with pytest.raises(TraceError) as caught:
        batch.search(replace(REQUEST, command=("train.py", *given)), Scripted(trace_of), json=True)
    assert caught.value.hint.startswith(hint)


def test_without_effect_of_the_batch_size_the_hint_names_batch_arg():
    with pytest.raises(CotenantError) as caught:
        search(lambda size: steps(batch_mib=10), 1)
    assert "`--batch-arg`" in caught.value.hint
