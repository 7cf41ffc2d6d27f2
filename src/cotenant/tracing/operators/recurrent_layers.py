"""Sizes of what cuDNN allocates for recurrent layers: the reserve space and the workspace.

They are those that `cudnnGetRNNTempSpaceSizes` of cuDNN 9.20 returns without a GPU, as a warning says. The rules were
found on 980 shapes for an A100: LSTM, GRU and `nn.RNN` of one to six layers, in one direction and both, padded and
packed, in training and evaluation, with dropout and without, float32 and float16; projections are not among them. Of
150 other random shapes none is more than 72 bytes off. cuDNN returns nothing for bfloat16, nor for the small hidden
states that torch gives to another algorithm (`use_rnn_persist_small_h`): their sizes are assumed to be the same.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from cotenant.core.units import MiB

RELU, TANH, LSTM, GRU = 0, 1, 2, 3
_GATES = {RELU: 1, TANH: 1, LSTM: 4, GRU: 3}
_RESERVE_VALUES = {RELU: 1, TANH: 1, LSTM: 5, GRU: 6}
"""Of the reserve space, per hidden unit, step, layer and direction: gates and state; a GRU also a product."""
_RESERVE_BYTES = 256
_LAYER_BYTES = 8 * MiB
"""Of the workspace, for each layer and direction."""
_WORKSPACE_BYTES, _SEQUENCE_BYTES = 256, 8
_STATES = {RELU: 1, TANH: 1, LSTM: 6, GRU: 3}
_GRADIENT_STATES = {RELU: 1, TANH: 1, LSTM: 3, GRU: 1}
"""In the workspace of the outputs, and in that of the gradients."""
_STEP_GROUPS = ((1, 32), (8, 16), (16, 8), (96, 4), (math.inf, 2))
"""(Largest batch, steps of a group)."""
_LEAST_STEPS, _GATE_STEPS = 8, 256
_ALIGNMENT_BYTES = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class RecurrentLayers:
    """Recurrent layers in one call of cuDNN.

    Attributes:
        rows: steps of all sequences in the batch.
        steps: of the longest.
        inputs, hidden, projected: values per step; `projected` is 0 without a projection.
        matrices: elements of all weights without biases.
        packed: the batch has no padding.
        dropout: whether values between layers are dropped.
    """

    number: int
    rows: int
    batch: int
    steps: int
    inputs: int
    hidden: int
    projected: int
    layers: int
    directions: int
    matrices: int
    packed: bool
    dropout: bool

    def reserve_bytes(self, item: int) -> int:
        """The reserve space, with elements of `item` bytes: gates and states of each layer, what one layer
        hands to the next, and a bit for each value that may be dropped between two, in each direction, also of padding.
        """
        values = _RESERVE_VALUES[self.number] + (1 if self.projected else 0)
        between = (self.layers - 1) * (self.projected or self.hidden)
        of_layers = self.layers * (values * self.hidden + self.projected)
        reserved = self.rows * self.directions * (of_layers + between) * item + _RESERVE_BYTES
        if not self.dropout:
            return reserved
        mask_bits = self.batch * self.steps * self.hidden * self.directions
        return reserved + (self.layers - 1) * self.directions * _aligned(-(-mask_bits // 8))

    @property
    def _state_elements(self) -> int:
        return self.batch * self.hidden * self.layers * self.directions

    def _padding_elements(self) -> int:
        """Copies of a padded batch and its states to packed ones."""
        if self.packed:
            return 0
        states = (4 if self.number == LSTM else 2) * self._state_elements
        return states + self.rows * (self.inputs + self.hidden * self.directions)

    def _output_elements(self, *, trains: bool) -> int:
        """States of a step, and gates of all steps; in one direction of so many steps at a time."""
        both = self.directions - 1
        gates = self.hidden * (_GATES[self.number] * self.directions + 4 * both)
        rows = self.rows if both else min(self.rows, self.batch * _GATE_STEPS)
        elements = (_STATES[self.number] + 2 * both) * self._state_elements + rows * gates
        if trains and self.dropout and self.layers > 1 and not both:
            elements += self.rows * self.hidden
        return elements + self._padding_elements()

    def _gradient_elements(self) -> int:
        """States of a step, gradients of a layer's input at all steps, and what the next layer reads of them.

        Layers in one direction overlap, with so many steps between two of them.
        """
        both = self.directions - 1
        inputs = self.rows * max(self.inputs, self.hidden) * (4 if both else 1)
        if both:
            between = self.rows * 2 * self.hidden * (2 if self.layers > 1 else 1)
        else:
            between = min(self.rows, self.batch * self._overlapping_steps()) * self.hidden
        states = (_GRADIENT_STATES[self.number] + 2 * both) * self._state_elements
        return states + inputs + between + 2 * self._padding_elements()

    def _overlapping_steps(self) -> int:
        """Of layers in one direction: each begins with a group of steps when the one before is done with it."""
        if self.layers == 1:
            return self.steps
        group = next(steps for most, steps in _STEP_GROUPS if self.batch <= most)
        return group * self.layers + max(group, _LEAST_STEPS)

    def workspace_bytes(self, item: int, *, trains: bool) -> int:
        """The workspace of a call, with elements of `item` bytes: a copy of the weights, and what a pass needs.

        Training has one size for outputs and gradients.
        """
        elements = self._output_elements(trains=trains)
        if trains:
            elements = max(elements, self._gradient_elements())
        fixed_bytes = _WORKSPACE_BYTES + (0 if self.packed else _aligned(_SEQUENCE_BYTES * self.batch))
        return item * (self.matrices + elements) + self.layers * self.directions * _LAYER_BYTES + fixed_bytes


def _aligned(size: int) -> int:
    return -(-size // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES
