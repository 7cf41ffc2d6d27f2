"""All tables of shape functions: those of this package, and those of other distributions.

A module of its own: tables import nothing of each other.
"""

from __future__ import annotations

import functools

from cotenant.core.errors import PluginError
from cotenant.core.registry import Registry
from cotenant.tracing.operators.registry import OperatorTable

PLUGIN_GROUP = "cotenant.shape_functions"
OPERATOR_TABLES: Registry[OperatorTable] = Registry(
    "table of shape functions",
    PLUGIN_GROUP,
    {
        "fast_paths": "cotenant.tracing.operators.fast_paths:operators",
        "elementwise": "cotenant.tracing.operators.elementwise:operators",
        "batch_norm": "cotenant.tracing.operators.batch_norm:operators",
        "normalization": "cotenant.tracing.operators.normalization:operators",
        "host_copies": "cotenant.tracing.operators.host_copies:operators",
        "convolutions": "cotenant.tracing.operators.convolutions:operators",
        "dynamic_shapes": "cotenant.tracing.operators.dynamic_shapes:operators",
        "unique": "cotenant.tracing.operators.unique:operators",
        "rnn": "cotenant.tracing.operators.rnn:operators",
        "losses": "cotenant.tracing.operators.losses:operators",
        "missing_meta_kernels": "cotenant.tracing.operators.missing_meta_kernels:operators",
        "sparse": "cotenant.tracing.operators.sparse:operators",
        "library_calls": "cotenant.tracing.operators.library_calls:operators",
        "attention_scratch": "cotenant.tracing.operators.attention_scratch:operators",
        "flash_attention": "cotenant.tracing.patches.flash_attention:operators",
        "fourier": "cotenant.tracing.operators.fourier:operators",
        "factorizations": "cotenant.tracing.operators.factorizations:operators",
        "embeddings": "cotenant.tracing.operators.embeddings:operators",
        "kernel_scratch": "cotenant.tracing.operators.kernel_scratch:operators",
        "gradients_in_place": "cotenant.tracing.operators.gradients_in_place:operators",
        "sorting": "cotenant.tracing.operators.sorting:operators",
        "resized_results": "cotenant.tracing.operators.resized_results:operators",
        "reductions": "cotenant.tracing.operators.reductions:operators",
        "moe_routing": "cotenant.tracing.assumptions.moe_routing:operators",
        "generated_tokens": "cotenant.tracing.assumptions.generated_tokens:operators",
        "equal_contents": "cotenant.tracing.assumptions.equal_contents:operators",
        "ranked_choices": "cotenant.tracing.assumptions.ranked_choices:operators",
        "shifted_positions": "cotenant.tracing.assumptions.shifted_positions:operators",
        "drawn_image_sizes": "cotenant.tracing.assumptions.drawn_image_sizes:operators",
    },
)


@functools.cache
def all_operators() -> OperatorTable:
    """One table of all that is registered.

    Raises:
        PluginError: a table of another distribution cannot be imported, is no table, or registers an operator that has
            a shape function or recorder already, without `override=True`.
    """
    merged = OperatorTable()
    for name in OPERATOR_TABLES.names():
        table = OPERATOR_TABLES.get(name)
        if not isinstance(table, OperatorTable):
            found = f"`{name}` of {OPERATOR_TABLES.provider(name)} is a `{type(table).__name__}`"
            raise PluginError(
                f"{found}, wanted an `OperatorTable`",
                hint=f"an entry point of `{PLUGIN_GROUP}` names the table, e.g. `my_package.shapes:operators`",
            )
        merged.add(table)
    return merged
