"""The synthetic job of a row that lists its layers: MLPs and CNNs.

One file for each kind of network, as `transformer`.
"""

from __future__ import annotations

import math

from cotenant.core.errors import UsageError
from cotenant.learn.data_collection.configs import CnnConfig, parse_id
from cotenant.learn.datasets.dataset_row import DatasetRow, Layer
from cotenant.learn.networks.layer_list import build_network
from cotenant.learn.synthetic_traces.branched_cnn import BRANCHED, branched_cnn
from cotenant.learn.synthetic_traces.modules import SyntheticModule, SyntheticModules
from cotenant.learn.synthetic_traces.synthetic_job import SyntheticJob
from cotenant.learn.synthetic_traces.tape import F32, Parameter, Tape, Tensor


def layer_list_job(row: DatasetRow) -> SyntheticJob:
    """The job of a row of dense and convolutional layers.

    Reads the extras `input_shape` (`3x224x224`, `1000`), `activation` and `last_batch`, where they are; of a generated
    CNN its configuration.

    Raises:
        UsageError: a layer whose kind or shape is not known.
    """
    shape = _input_shape(row)
    network = _network(row, shape)

    def forward(tape: Tape, x: Tensor, samples: int) -> Tensor:
        return network.forward(tape, tape.retain(x), samples)

    return SyntheticJob(
        forward=forward,
        load=network.state,
        order=[item for item in network.state if isinstance(item, Parameter)],
        sample_bytes=F32 * math.prod(shape),
        batch=row.batch,
        last_batch=int(row.extras.get("last_batch", 0)),
    )


def _network(row: DatasetRow, shape: tuple[int, ...]) -> SyntheticModule:
    is_generated = "image" in row.extras
    if is_generated and row.group in BRANCHED:
        config = parse_id(row.config_id)
        assert isinstance(config, CnnConfig)
        return branched_cnn(config)
    activation = str(row.extras.get("activation", "relu"))
    return build_network(row.layers, shape, SyntheticModules(), activation=activation, group=row.group)


def _input_shape(row: DatasetRow) -> tuple[int, ...]:
    text = str(row.extras.get("input_shape", ""))
    if text:
        return tuple(int(size) for size in text.split("x"))
    if "image" in row.extras:
        side = int(row.extras["image"])
        return (int(row.extras["channels"]), side, side)
    if row.layers and row.layers[0].output_shape:
        return _guessed_input(row.layers[0])
    raise UsageError(f"row `{row.config_id}` has no input shape", hint="add `input_shape` to its extras")


def _guessed_input(first: Layer) -> tuple[int, ...]:
    """The input that fits the weights of the first layer; 3 channels of its own size for a convolution."""
    if first.kind == "linear":
        return (max(1, first.parameters // first.outputs - 1),)
    return (3, *first.output_shape[1:])
