"""Features of learned estimators: of a network, of its layers, and of its convolutions. Pure, no numpy.

Training (a network from a data set) and estimation (a traced network) use the same functions.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from cotenant.allocator import ReplayResult
from cotenant.core.errors import UsageError
from cotenant.core.trace import MemoryEvent, MemoryTrace
from cotenant.core.units import MiB
from cotenant.estimators.cudnn.workspaces import none
from cotenant.estimators.layer_kinds import LAYER_KINDS, LayerKind, layer_kind
from cotenant.estimators.replay_input import ReplayInput, make_replay_input
from cotenant.estimators.trace_features import Features

_F32 = 4
_HALF = 2

ACTIVATIONS = (
    "relu",
    "leaky_relu",
    "prelu",
    "elu",
    "selu",
    "gelu",
    "tanh",
    "swish",
    "softplus",
    "mish",
    "identity",
)
"""The activations of GPUMemNet's generator; each is encoded as a point on a circle."""
_SPELLINGS = {"silu": "swish", "leakyrelu": "leaky_relu", "gelutanh": "gelu", "newgelu": "gelu"}


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkLayer:
    """One layer of a network.

    Attributes:
        outputs: elements of its output for one sample.
        positions: how often its weights are used for one sample: pixels of a convolution, tokens of a linear layer.
        name: of its class, or of the activation.
    """

    kind: LayerKind
    outputs: int
    parameters: int
    positions: int = 1
    name: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """A network and how it is trained.

    Attributes:
        batch: samples of a step.
        state_copies: bytes of optimizer state, as a multiple of the weights: 2 for Adam, 0 for plain SGD.
        half: matrix products and convolutions run in 16 bits.
    """

    batch: int
    layers: tuple[NetworkLayer, ...]
    activation: str = "relu"
    state_copies: float = 2.0
    half: bool = False

    @property
    def family(self) -> str:
        """`transformer` if anything attends or embeds, else `cnn` if anything convolves, else `mlp`."""
        kinds = {layer.kind for layer in self.layers}
        if kinds & {"attention", "embedding"}:
            return "transformer"
        return "cnn" if "conv" in kinds else "mlp"


def network_of(trace: MemoryTrace, batch: int | None) -> Network:
    """The network that a script calls, from the layers in its trace's header, without losses and reshapes.

    `batch`: samples of a step; None: by the first dimension of the layers' outputs.

    Raises:
        UsageError: the trace has no layers (the script called no `torch.nn` module, or the trace is old).
    """
    calls = trace.header.layers
    if not calls:
        raise UsageError(
            "the trace has no layers: learned estimators need the `torch.nn` modules of a network",
            hint="choose another estimator; `traced` needs no modules",
        )
    firsts = [call.output_shape[0] for call in calls if len(call.output_shape) > 1]
    counted = [call for call in calls if call.parameters or (call.output_shape and layer_kind(call.kind) != "reshape")]
    samples = batch or (max(set(firsts), key=firsts.count) if firsts else 1)
    layers = []
    activation = ""
    for name, parameters, shape in counted:
        kind = layer_kind(name)
        if kind == "activation" and not activation:
            activation = activation_of(name)
        layers.append(
            NetworkLayer(
                kind=kind,
                outputs=math.prod(shape) // samples if shape else 0,
                parameters=parameters,
                positions=positions_of(kind, shape[1:]),
                name=name,
            )
        )
    return Network(batch=samples, layers=tuple(layers), activation=activation or "relu")


def network_in_training(trace: MemoryTrace, features: Features) -> Network:
    """`network_of` a script, with the optimizer and precision that it trains with; raises as that does."""
    copies = sum(features.state_bytes) / features.weight_bytes if features.weight_bytes else 0.0
    half = any(layer.item_bytes == _HALF for layer in features.layers)
    return replace(network_of(trace, features.batch), state_copies=round(copies, 2), half=half)


def positions_of(kind: LayerKind, shape: Sequence[int]) -> int:
    """Pixels or tokens at which a layer with an output of `shape` (of one sample) uses its weights."""
    if kind == "conv":
        return math.prod(shape[1:])
    return math.prod(shape[:-1]) if kind in ("linear", "attention") else 1


def activation_of(name: str) -> str:
    """The name in `ACTIVATIONS` of a class; `relu` for any other."""
    plain = name.lower().removesuffix("activation")
    plain = _SPELLINGS.get(plain, plain)
    return plain if plain in ACTIVATIONS else "relu"


# -- the network in a few numbers -------------------------------------------------------------------------------------


def paper_features(network: Network) -> dict[str, float]:
    """The features of the paper's MLP ensembles, by its set of them for each family.

    Source: GPUMemNet (arXiv 2602.17817) and its loaders. Counts and elements, unscaled.
    """
    layers = network.layers
    count = {kind: sum(layer.kind == kind for layer in layers) for kind in LAYER_KINDS}
    parameters = float(sum(layer.parameters for layer in layers))
    activations = float(sum(layer.outputs for layer in layers))
    angle = 2 * math.pi * ACTIVATIONS.index(network.activation) / len(ACTIVATIONS)
    point = {"activation_sin": math.sin(angle), "activation_cos": math.cos(angle)}
    batch = {"batch": float(network.batch)}
    if network.family == "mlp":
        found = {"linears": float(count["linear"]), **batch, "parameters": parameters, "activations": activations}
        return {**found, "batchnorms": float(count["batchnorm"]), "dropouts": float(count["dropout"]), **point}
    depth = float(sum(layer.parameters > 0 for layer in layers))
    totals = {"depth": depth, "activations": activations, "activations_batch": activations * network.batch}
    totals |= {"parameters": parameters, **batch}
    if network.family == "cnn":
        names: tuple[LayerKind, ...] = ("conv", "batchnorm", "dropout")
        return {**totals, **{f"{name}s": float(count[name]) for name in names}, **point}
    names = ("attention", "linear", "norm", "dropout")
    return {**totals, **{f"{name}s": float(count[name]) for name in names}}


_BYTE_KINDS: tuple[LayerKind, ...] = (
    "linear",
    "conv",
    "embedding",
    "attention",
    "batchnorm",
    "norm",
    "activation",
    "dropout",
)


def byte_features(network: Network) -> dict[str, float]:
    """MiB in fp32 by kind of layer: of weights, and of outputs of a batch; the largest layers; counts.

    A training step holds multiples of these.
    """
    scale = _F32 / MiB
    outputs = dict.fromkeys(_BYTE_KINDS, 0.0)
    weights = dict.fromkeys(_BYTE_KINDS, 0.0)
    for layer in network.layers:
        if layer.kind in outputs:
            outputs[layer.kind] += layer.outputs * network.batch * scale
            weights[layer.kind] += layer.parameters * scale
    sizes = sorted((layer.outputs * network.batch * scale for layer in network.layers), reverse=True)
    heaviest = max((layer.parameters for layer in network.layers), default=0) * scale
    found = {f"{kind}_outputs_mib": value for kind, value in outputs.items()}
    found |= {f"{kind}_weights_mib": value for kind, value in weights.items()}
    found |= {"weights_mib": sum(layer.parameters for layer in network.layers) * scale}
    found |= {"outputs_mib": sum(sizes), "largest_mib": sizes[0] if sizes else 0.0, "heaviest_mib": heaviest}
    found |= {"second_mib": sizes[1] if len(sizes) > 1 else 0.0}
    found |= {"batch": float(network.batch), "layers": float(len(network.layers))}
    found |= {
        "kept_by_output": float(network.activation in ("relu", "tanh")),
        "prelu": float(network.activation == "prelu"),
    }
    return found


def training_features(network: Network) -> dict[str, float]:
    """Features of the training: used beside those of the network where the training data vary in them."""
    return {"state_copies": network.state_copies, "half": float(network.half)}


def work_features(network: Network) -> dict[str, float]:
    """`byte_features`, and the operations of a forward pass, which decide how busy a GPU is.

    Operations are in 10^9, of matrix products and convolutions; the elements of an input follow from the first layer's
    weights.
    """
    found = byte_features(network)
    flops = [
        2e-9 * network.batch * layer.parameters * layer.positions
        for layer in network.layers
        if layer.kind in ("linear", "conv", "attention")
    ]
    first = next((layer for layer in network.layers if layer.parameters), None)
    inputs = first.parameters / max(1, first.outputs // first.positions) * first.positions if first else 1.0
    total, count = sum(flops), max(1, len(flops))
    moved = found["weights_mib"] + found["outputs_mib"]
    found |= {"gflop": total, "gflop_most": max(flops, default=0.0), "gflop_mean": total / count}
    found |= {
        "gflop_per_mib": total / moved if moved else 0.0,
        "inputs": inputs,
        "inputs_batch": inputs * network.batch,
    }
    found |= {"outputs_mean_mib": found["outputs_mib"] / max(1, len(network.layers))}
    return found


def layer_sequence(network: Network) -> list[tuple[int, float, float]]:
    """Each layer as the number of its kind, and elements of its outputs of a batch and of its weights."""
    numbers = {kind: number for number, kind in enumerate(LAYER_KINDS)}
    return [
        (numbers[layer.kind], float(layer.outputs * network.batch), float(layer.parameters)) for layer in network.layers
    ]


# -- convolutions -----------------------------------------------------------------------------------------------------

CONV_FEATURES = (
    "convolutions",
    "batch",
    "first_side",
    "widest_channels",
    "largest_in_channels",
    "largest_out_channels",
    "largest_mib",
    "second_mib",
    "all_mib",
    "mean_to_largest",
    "largest_weight_mib",
    "largest_pixels",
    "largest_place",
    "weights_mib",
    "bare_to_reserved",
    "allocated_to_reserved",
    "bare_allocated_to_all",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Replays:
    """Peaks of a trace in a replay, and in one (`bare`) where no convolution takes a workspace."""

    reserved_bytes: int
    allocated_bytes: int
    bare_reserved_bytes: int
    bare_allocated_bytes: int


def conv_features(trace: MemoryTrace, replays: Replays) -> dict[str, float] | None:
    """Features that correlate with errors of simulated workspaces; None for a trace without convolutions.

    `largest` is the convolution with the most bytes in input and output, which are what workspaces hold.
    """
    shapes = [_shapes(trace.ops[event.op_id].params) for event in _one_forward(trace)]
    if not shapes:
        return None
    sizes = [(math.prod(x) + math.prod(y)) * _F32 / MiB for x, _, y in shapes]
    place = max(range(len(sizes)), key=sizes.__getitem__)
    x, w, y = shapes[place]
    by_size = sorted(sizes, reverse=True)
    parameters = sum(e.bytes for e in trace.events if e.action == "alloc" and e.category == "parameter")
    values = (
        len(sizes),
        x[0],
        shapes[0][0][-1],
        max(nbytes[1] for _, _, nbytes in shapes),
        x[1],
        y[1],
        by_size[0],
        by_size[1] if len(by_size) > 1 else 0.0,
        sum(sizes),
        sum(sizes) / len(sizes) / by_size[0],
        math.prod(w) * _F32 / MiB,
        y[0] * math.prod(y[2:]),
        place / len(sizes),
        parameters / MiB,
        replays.bare_reserved_bytes / replays.reserved_bytes,
        replays.allocated_bytes / replays.reserved_bytes,
        replays.bare_allocated_bytes / MiB / sum(sizes),
    )
    return dict(zip(CONV_FEATURES, map(float, values), strict=True))


def _one_forward(trace: MemoryTrace) -> Iterable[MemoryEvent]:
    """Convolutions of the forward pass after the first optimizer step, or, if there is none, of the first one."""
    seen: dict[bool, list[MemoryEvent]] = {False: [], True: []}
    stepped = False
    for event in trace.events:
        if event.action == "phase":
            if event.phase == "backward" and stepped and seen[True]:
                break
            stepped = stepped or event.phase == "step"
        elif event.action == "op" and event.phase == "forward" and _convolves(trace, event):
            seen[stepped].append(event)
    return seen[True] or seen[False]


def _convolves(trace: MemoryTrace, event: MemoryEvent) -> bool:
    return trace.ops[event.op_id].kind == "conv_forward"


def _shapes(params: Mapping[str, object]) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(int(param) for param in params[name]) for name in ("x", "w", "y"))  # type: ignore[attr-defined]


def replays_of(trace: MemoryTrace, replay_input: ReplayInput, result: ReplayResult | None = None) -> Replays:
    """Peaks of `trace` on the GPU of `replay_input`, with and without workspaces; `result`: the former, if known."""
    full = replay_input.replay() if result is None else result
    convolves = any(op.kind.startswith("conv") for op in trace.ops)
    bare = make_replay_input(trace, replay_input.gpu, replay_input.stack, conv=none).replay() if convolves else full
    return Replays(
        reserved_bytes=full.peak_reserved_bytes,
        allocated_bytes=full.peak_allocated_bytes,
        bare_reserved_bytes=bare.peak_reserved_bytes,
        bare_allocated_bytes=bare.peak_allocated_bytes,
    )
