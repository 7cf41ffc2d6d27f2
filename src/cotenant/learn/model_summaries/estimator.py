"""GPU memory from a printed summary of a model and a batch size: no script, no torch, milliseconds.

The layers are simulated one after another, trained in fp32 with Adam; the learned estimators read the same layers. Both
know less than a trace of the script, and every estimate says what is assumed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from cotenant.core.errors import CotenantError, UsageError
from cotenant.core.estimate import Estimate
from cotenant.core.ports import EstimateRequest
from cotenant.core.trace import MemoryTrace
from cotenant.core.units import MiB
from cotenant.estimators import ESTIMATORS, create
from cotenant.estimators.compare import EstimatorResult
from cotenant.estimators.learned.estimators import LearnedEstimator
from cotenant.estimators.learned.network_features import Network
from cotenant.estimators.learned.utilization import utilization_on
from cotenant.gpu_specs import GpuSpec, gpu_spec
from cotenant.learn.datasets.dataset_row import Layer
from cotenant.learn.datasets.feature_table import network_of_layers
from cotenant.learn.model_summaries.summary import Summary, parse_summary
from cotenant.learn.synthetic_traces.layer_chain import layer_chain
from cotenant.learn.synthetic_traces.simulation import replay_input_for
from cotenant.learn.synthetic_traces.synthetic_job import trace_of

MAX_SUMMARY_BYTES = 16 * 2**20
ASSUMED = "a summary shows no optimizer, precision, loss or residual connection: Adam and fp32 are assumed"
COVERAGE = 0.95
MARGIN_RATIO = 0.2
MARGIN_BYTES = 128 * MiB
"""The margin is a fifth of the reserved bytes, and this much. Of 29 published jobs of eleven networks, the worst was
16 % below what was measured and half were within 1.5 %; the rules were written with them at hand, so jobs unlike them
may be further off. Source: `benchmarks/estimator/from_summaries.py`.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribedModel:
    """A summary that was read.

    Attributes:
        tokens: of a sample; None for a network without embeddings.
        warnings: what had to be assumed to read it.
    """

    summary: Summary
    batch: int
    tokens: int | None
    warnings: tuple[str, ...]

    @property
    def network(self) -> Network:
        """Its layers, in the form of the learned estimators."""
        return network_of_layers(self.summary.layers, self.batch)


class SummaryEstimator:
    """The peak of a simulated training step of the layers in `EstimateRequest.model_summary`."""

    name = "summary"
    version = "1"

    def estimate(self, request: EstimateRequest) -> Estimate:
        """The estimate; see `core.ports.Estimator`.

        Raises:
            UsageError: the request names no summary or no batch size, or the file cannot be read.
            SummaryError: the file is no summary; names the line.
        """
        return simulated(read_model(request), gpu_spec(request.gpu))


def read_model(request: EstimateRequest) -> DescribedModel:
    """The model that a request describes; raises as `SummaryEstimator.estimate` does."""
    if request.model_summary is None:
        raise UsageError("no summary of a model was given", hint="write `cotenant estimate model.txt --batch-size 32`")
    path = Path(request.workdir, request.model_summary)
    text = _read(path)
    shown = request.model_summary
    summary = parse_summary(text, shown, sequence=request.tokens)
    batch = request.batch_size or summary.batch
    if batch is None:
        raise UsageError(f"`{shown}` does not say how many samples a batch has", hint="add `--batch-size 32`")
    tokens = request.tokens
    warnings: tuple[str, ...] = ()
    if summary.format == "modelsummary" and tokens is None:
        tokens = _longest(summary.layers)
        if tokens is not None:
            summary = parse_summary(text, shown, sequence=tokens)
            warnings = (f"`{shown}` shows no lengths: {tokens} tokens are assumed, the most its positions allow",)
    return DescribedModel(summary=summary, batch=batch, tokens=tokens, warnings=warnings)


def simulated(model: DescribedModel, gpu: GpuSpec) -> Estimate:
    """The estimate by simulation of the layers.

    Raises:
        UsageError: no layer has a shape.
    """
    chain = layer_chain(model.summary.layers, model.batch)
    result = replay_input_for(_with_activations(trace_of(chain.job)), gpu.name).replay()
    margin = round(MARGIN_RATIO * result.peak_reserved_bytes) + MARGIN_BYTES
    context = gpu.context.high_bytes - gpu.context.typical_bytes
    warnings = [ASSUMED, *model.warnings]
    if chain.hidden:
        names = ", ".join(dict.fromkeys(chain.hidden))
        warnings.append(f"layers inside of {names} are not shown: the estimate is a lower bound")
    estimate = Estimate(
        peak_allocated_bytes=result.peak_allocated_bytes,
        peak_reserved_bytes=result.peak_reserved_bytes,
        context_bytes=gpu.context.typical_bytes,
        margin_bytes=margin + context,
        coverage=COVERAGE,
        estimator=SummaryEstimator.name,
        version=SummaryEstimator.version,
        gpu=gpu.name,
        breakdown_bytes=dict(result.breakdown_bytes),
        warnings=tuple(warnings),
        partial=bool(chain.hidden),
    )
    try:
        busy = utilization_on(model.network, gpu)
    except UsageError:
        return estimate
    return replace(estimate, smact=busy.smact, smocc=busy.smocc)


def _with_activations(recorded: MemoryTrace) -> MemoryTrace:
    """`recorded`, with what the forward pass saves for the backward pass named as the tracer names it."""
    saved = {event.storage_id for event in recorded.events if event.action == "free" and event.phase != "forward"}
    events = tuple(
        event._replace(category="activation")
        if event.action == "alloc"
        and (event.phase, event.category) == ("forward", "temporary")
        and event.storage_id in saved
        else event
        for event in recorded.events
    )
    return replace(recorded, events=events)


def learned(model: DescribedModel, gpu: GpuSpec) -> tuple[EstimatorResult, ...]:
    """What every learned estimator that reads layers makes of a model; a plug-in's too."""
    results = []
    for name in ESTIMATORS:
        try:
            estimator = create(name)
            if not isinstance(estimator, LearnedEstimator):
                continue
            estimate = estimator.of_network(model.network, gpu)
            results.append(EstimatorResult(name=name, estimate=estimate, problem=None, leaves_out=estimator.leaves_out))
        except CotenantError as error:
            results.append(EstimatorResult(name=name, estimate=None, problem=error.message, leaves_out=""))
    return tuple(results)


def _longest(layers: Sequence[Layer]) -> int | None:
    """Rows of the second table of embeddings: those of the positions."""
    tables = [layer for layer in layers if layer.kind == "embedding" and layer.outputs]
    rows = [table.parameters // table.outputs for table in tables[1:2]]
    return rows[0] if rows and rows[0] > 1 else None


def _read(path: Path) -> str:
    try:
        with path.open("rb") as file:
            content = file.read(MAX_SUMMARY_BYTES + 1)
    except OSError as error:
        raise UsageError(f"cannot read `{path}`: {(error.strerror or str(error)).lower()}") from error
    if len(content) > MAX_SUMMARY_BYTES:
        raise UsageError(f"`{path}` is larger than 16 MiB: not a summary of a model")
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise UsageError(f"`{path}` is not UTF-8 text: {error}") from error
