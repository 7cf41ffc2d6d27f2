"""Accumulators of flash attention where it splits the keys over more thread blocks, since few blocks would run.

A small batch of long sequences leaves multiprocessors idle; then each split has an output and row sums of its own, in
float32, which a second kernel adds.

Source: aten/src/ATen/native/transformers/cuda/flash_attn/flash_api.cpp, `num_splits_heuristic`, `set_params_splitkv`.
Not modeled: sequences of several lengths in one call, which are not split.

A module of its own: one heuristic of one library, tested as a table.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from cotenant.core.trace import LibraryCall

_QUERY_ROWS = 64
_MAX_SPLITS = 128
_FULL_GPU = 0.8
"""Share of the GPU's blocks from which nothing is split."""
_GOOD_ENOUGH = 0.85
"""Of the best efficiency, with which fewer splits are preferred."""
_BLOCKS_PER_SM = 2
_FLOAT_BYTES = 4


def split_buffers(op: LibraryCall, sm_count: int) -> tuple[int, ...]:
    """Bytes of the row sums and of the outputs of all splits; () if there is one.

    `op.params`: `query` (batch, heads, rows, head size), `keys`: rows of keys.
    """
    batch, heads, rows, head = cast("Sequence[int]", op.params["query"])
    keys = cast("int", op.params["keys"])
    width = 256 if head <= 64 else 128 if head <= 128 else 64
    splits = _splits(batch * heads * -(-rows // _QUERY_ROWS), _BLOCKS_PER_SM * sm_count, -(-keys // width))
    if splits == 1:
        return ()
    sums = splits * batch * heads * rows * _FLOAT_BYTES
    return sums, sums * (-(-head // 32) * 32 if head <= 192 else 256)


def _splits(blocks: int, slots: int, key_blocks: int) -> int:
    """The fewest splits that keep nearly as many of the GPU's `slots` at work as the best number does."""
    if blocks >= _FULL_GPU * slots:
        return 1
    # A number that leaves as many blocks to each split as one split fewer does has an empty split.
    eligible = [
        splits
        for splits in range(1, min(_MAX_SPLITS, slots, key_blocks) + 1)
        if splits == 1 or -(-key_blocks // splits) != -(-key_blocks // (splits - 1))
    ]
    efficiency = {splits: blocks * splits / slots / -(-blocks * splits // slots) for splits in eligible}
    best = max(efficiency.values(), default=0.0)
    return next((splits for splits in eligible if efficiency[splits] >= _GOOD_ENOUGH * best), 1)
