"""The synthetic job of a Transformer encoder.

Shapes: `D` width, `F` width of the feed-forward part, `L` tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

from cotenant.core.errors import UsageError
from cotenant.learn.datasets.dataset_row import DatasetRow
from cotenant.learn.synthetic_traces import operations as op
from cotenant.learn.synthetic_traces.synthetic_job import SyntheticJob
from cotenant.learn.synthetic_traces.tape import F32, Parameter, Tape, Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class EncoderShape:
    """A stack of `nn.TransformerEncoderLayer` (post-norm, ReLU) between an embedding and a linear layer."""

    vocabulary: int
    width: int
    length: int
    layers: int
    heads: int
    feedforward: int
    classes: int


def encoder_job(shape: EncoderShape, batch: int, last_batch: int = 0) -> SyntheticJob:
    """The training job; two forward passes of a whole batch precede it, as in the published runs."""
    D, F, L = shape.width, shape.feedforward, shape.length  # noqa: N806 - shapes, as in the module's docstring
    table, positions = Parameter(F32 * shape.vocabulary * D), Parameter(F32 * L * D)
    stack = [_encoder_weights(D, F) for _ in range(shape.layers)]
    head = [Parameter(F32 * D * shape.classes), Parameter(F32 * shape.classes)]

    def forward(tape: Tape, tokens: Tensor, samples: int) -> Tensor:
        rows = samples * L
        embedded = op.embed(tape, tokens, rows * D, table)
        source = op.add_positions(tape, embedded, positions)
        tape.release(embedded)
        x = tape.retain(source)
        for weights in stack:
            found = _encoder_layer(tape, x, samples, shape, weights)
            tape.release(x)
            x = found
        tape.release(source)
        pooled = op.mean(tape, x, (samples, L, D), (1,))
        tape.release(x)
        logits = op.linear(tape, pooled, samples, head[0], head[1])
        tape.release(pooled)
        return logits

    flat = [weight for weights in stack for weight in weights]
    # `Module.to` moves submodules first: the out-projection before the weights of the attention itself.
    loaded = [parameter for weights in stack for parameter in (*weights[2:4], *weights[:2], *weights[4:])]
    return SyntheticJob(
        forward=forward,
        load=[table, *loaded, *head, positions],
        order=[positions, table, *flat, *head],
        sample_bytes=8 * L,
        batch=batch,
        last_batch=last_batch,
        example=batch,
        trials=2,
        holds_example=True,
    )


def encoder_of(row: DatasetRow) -> EncoderShape:
    """The encoder in the extras of a row; `depth`, the setting of generated configurations, is its `layers`.

    Raises:
        UsageError: one of its sizes is missing, or the row is of another shape.
    """
    if row.group != "encoder":
        raise UsageError(f"row `{row.config_id}` is a `{row.group}`, of which no simulation is known, wanted `encoder`")
    sizes = {"layers": row.extras.get("depth"), **row.extras}
    names = [field.name for field in fields(EncoderShape)]
    missing = [name for name in names if sizes.get(name) is None]
    if missing:
        raise UsageError(f"row `{row.config_id}` lacks {', '.join(missing)} of its encoder")
    return EncoderShape(**{name: int(sizes[name] or 0) for name in names})


def _encoder_weights(width: int, feedforward: int) -> list[Parameter]:
    """In the order of `named_parameters`: the out-projection is a submodule, so it follows the attention's weights."""
    counts = [3 * width * width, 3 * width, width * width, width]
    counts += [width * feedforward, feedforward, feedforward * width, width, width, width, width, width]
    return [Parameter(F32 * count) for count in counts]


def _encoder_layer(tape: Tape, x: Tensor, samples: int, shape: EncoderShape, weights: Sequence[Parameter]) -> Tensor:
    rows = samples * shape.length
    attended = op.self_attention(tape, x, samples, shape.length, shape.heads, weights[:4])
    between = op.norm(tape, added := _dropped_and_added(tape, x, attended), rows, weights[8:10])
    tape.release(added)
    wide = op.linear(tape, between, rows, weights[4], weights[5])
    active = op.activation(tape, wide, "relu")
    tape.release(wide)
    thinned = op.dropout(tape, active)
    tape.release(active)
    narrow = op.linear(tape, thinned, rows, weights[6], weights[7])
    tape.release(thinned)
    found = op.norm(tape, added := _dropped_and_added(tape, between, narrow), rows, weights[10:12])
    tape.release(added)
    tape.release(between)
    return found


def _dropped_and_added(tape: Tape, x: Tensor, branch: Tensor) -> Tensor:
    thinned = op.dropout(tape, branch)
    tape.release(branch)
    added = op.add(tape, x, thinned)
    tape.release(thinned)
    return added
