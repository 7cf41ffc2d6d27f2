"""Generation token by token: of a model's calls with a growing cache, one of 16 is traced once three were alike.

Another one grows the cache, as `DynamicLayer.update` does, and returns scores like those before, so every size of the
cache is in the trace; what lives within such a call is taken from the traced ones, up to 15 tokens shorter. Alike calls
record the same kinds of events in the same order; sizes may differ, as they depend on the length.

Not replaced are calls with caches of other kinds (static, sliding, quantized, states of recurrent layers), and calls
that return more than scores and the cache.
Source: transformers/cache_utils.py, `DynamicLayer` (4.56 to 5.23).
"""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from cotenant.tracing.assumptions.known_values import KnownValues
from cotenant.tracing.recorder import TraceRecorder

_MIN_ALIKE = 3
_TRACED_ONE_OF = 16
_KNOWN_RESULTS = {"logits", "past_key_values", "encoder_last_hidden_state"}


class RepeatedDecoding:
    """The latest calls of models that extend a cache by one token."""

    def __init__(self, recorder: TraceRecorder, values: KnownValues) -> None:
        self._recorder = recorder
        self._values = values
        self._alike: weakref.WeakKeyDictionary[torch.nn.Module, _Decoding] = weakref.WeakKeyDictionary()

    def layers(self, kwargs: dict[str, Any]) -> list[Any]:
        """The layers of a growing cache to which a call adds one token; empty where it is no such call."""
        cache = kwargs.get("past_key_values")
        cache = getattr(cache, "self_attention_cache", cache)
        layers = getattr(cache, "layers", None)
        tokens = kwargs.get("decoder_input_ids", kwargs.get("input_ids"))
        if not isinstance(layers, list) or not layers or not isinstance(tokens, FakeTensor) or tokens.shape[-1] != 1:
            return []
        return layers if all(_is_growing(layer) for layer in layers) else []

    def call(self, original: Any, module: torch.nn.Module, args: Any, kwargs: dict[str, Any], layers: list[Any]) -> Any:
        """Call a module, or grow its cache and make its result."""
        known = self._alike.setdefault(module, _Decoding())
        inputs = (len(layers), len(args), tuple(kwargs), tuple(layers[0].keys.shape[:-2]), layers[0].keys.dtype)
        length = layers[0].keys.shape[-2]
        if known.inputs != inputs or length != known.length + 1:
            known.forget(inputs)
        known.length = length
        known.count += 1
        if known.count > _MIN_ALIKE and known.count % _TRACED_ONE_OF:
            return known.repeat(kwargs, layers)
        before, reads = self._recorder.position(), self._values.reads
        result = original(module, *args, **kwargs)
        events, _ = self._recorder.events_since(before, older=True)
        kinds = tuple(event[::3] for event in events or () if isinstance(event, tuple))  # (action, module)
        known.add((kinds, self._values.reads - reads), result, layers)
        return result


class _Decoding:
    """Calls in a row, each with one token more.

    Attributes:
        inputs: what they were called with.
        length: of the cache, before the last one.
        count: calls so far; 0 after one that was unlike the one before.
    """

    def __init__(self) -> None:
        self.length = -1
        self.forget(None)

    def forget(self, inputs: object) -> None:
        """No calls so far."""
        self.inputs = inputs
        self.count = 0
        self._events: object = None
        self._scores: tuple[Any, ...] = ()
        self._class: Any = None
        self._names: tuple[str, ...] = ()

    def add(self, events: object, result: Any, layers: list[Any]) -> None:
        """Record a call that was traced."""
        names = tuple(result) if isinstance(result, dict) else ()
        scores = result.get("logits") if names else None
        has_grown = all(layer.keys.shape[-2] == layer.values.shape[-2] == self.length + 1 for layer in layers)
        if not has_grown or not _KNOWN_RESULTS.issuperset(names) or not isinstance(scores, FakeTensor):
            self.forget(None)
            return
        if events != self._events:
            self.count = 1
        self._events, self._names, self._class = events, names, type(result)
        self._scores = tuple(scores.shape), scores.stride(), scores.dtype, scores.device

    def repeat(self, kwargs: dict[str, Any], layers: list[Any]) -> Any:
        """Grow the cache, and return a result like that of the last call."""
        for layer in layers:
            layer.keys = torch.cat([layer.keys, layer.keys[..., :1, :]], dim=-2)
            layer.values = torch.cat([layer.values, layer.values[..., :1, :]], dim=-2)
        shape, strides, dtype, device = self._scores
        made = {
            "logits": torch.empty_strided(shape, strides, dtype=dtype, device=device),
            "past_key_values": kwargs["past_key_values"],
        }
        if "encoder_last_hidden_state" in self._names:
            made["encoder_last_hidden_state"] = kwargs["encoder_outputs"][0]
        return self._class(**made)


def _is_growing(layer: Any) -> bool:
    if type(layer).__name__ != "DynamicLayer":
        return False
    states = (getattr(layer, "keys", None), getattr(layer, "values", None))
    return all(isinstance(state, FakeTensor) and state.dim() == 4 and state.shape[-2] > 0 for state in states)
