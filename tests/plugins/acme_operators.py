"""Shape functions of a library with a CUDA operator of its own: `acme::pairwise`, all distances of two sets of rows."""

from __future__ import annotations

from cotenant.tracing.operators.registry import OperatorTable

ENTRY_POINTS = {"cotenant.shape_functions": {"acme": "acme_operators:operators"}}

operators = OperatorTable()


@operators.shape_of("acme::pairwise")
def _pairwise(ctx, func, args, kwargs):
    """A (rows, rows) matrix."""
    first, second = args
    shape = (first.shape[0], second.shape[0])
    return ctx.empty_strided(shape, (shape[1], 1), first.dtype, first.fake_device)


@operators.recorder_of("acme::pairwise")
def _norms(ctx, func, args, kwargs, out):
    """The kernel allocates the squared norm of each row before the result, in float32."""
    ctx.keep_until_done([ctx.scratch(4 * rows.shape[0], out.fake_device) for rows in args])
    ctx.record(out)
