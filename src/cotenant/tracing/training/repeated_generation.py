"""Texts that a model generates one after another, as roll-outs do: once two were alike, no more are traced.

A call of `generate` repeats the last two if they had the same inputs but for values, the same settings, and recorded
the same events; they leave nothing but their result. A long text needs no second one: its hundreds of tokens show that
calls of the model are alike. The result has the tokens of the last one, alone or in the output that the script wants
(`return_dict_in_generate`); where that has more, such as scores or a cache, every text is traced. Where more is
allocated around it than around the traced one, the events of that are recorded once more.
Source: transformers/generation/utils.py, `GenerationMixin.generate` (4.38 to 5.23).
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from cotenant.tracing.assumptions.known_values import GENERATED_TEXT, KnownValues
from cotenant.tracing.patches.registry import Patch, PatchContext, Phase
from cotenant.tracing.recorded_span import RecordedSpan
from cotenant.tracing.recorder import TraceRecorder
from cotenant.tracing.training.call_signature import signature

_MAX_EVENTS = 100_000  # of the trace, from which on texts leave events only where much more is allocated
_MUCH_MORE = 1 / 64
_EVENTS_OF_LONG = 20_000  # of one text


def patches(context: PatchContext) -> list[Patch]:
    """The method that generates."""
    texts = RepeatedGeneration(context.recorder, context.mode.known_values)
    return [
        Patch(
            target="transformers.generation.utils:GenerationMixin.generate", phase=Phase.TRAINING, wraps=True,
            replacement=texts.replacing,
            reason="A roll-out of dozens of texts, a token at a time, takes longer than any training step.",
            source="transformers/generation/utils.py, `GenerationMixin.generate`",
        )
    ]  # fmt: skip


@dataclass(slots=True)
class _Generation:
    """The latest alike calls of a model.

    Attributes:
        events: of the last one.
        result: its shape, dtype and device, once two were alike.
        tokens: what is known of its values.
        wrap: makes what `generate` returns of the result.
        live: bytes allocated around it, by GPU.
    """

    events: object = None
    result: tuple[tuple[int, ...], torch.dtype, torch.device] | None = None
    tokens: torch.Tensor | None = None
    wrap: Callable[[torch.Tensor], Any] = lambda made: made
    span: RecordedSpan | None = None
    live: dict[int, int] = field(default_factory=dict)


class RepeatedGeneration:
    """The latest texts, by model and inputs."""

    def __init__(self, recorder: TraceRecorder, values: KnownValues) -> None:
        self._recorder = recorder
        self._values = values
        self._known: weakref.WeakKeyDictionary[torch.nn.Module, dict[object, _Generation]] = weakref.WeakKeyDictionary()

    def replacing(self, original: Any) -> Any:
        """`generate`, which returns the result of earlier calls where this one would be alike."""

        @functools.wraps(original)
        def generate(model: Any, *args: Any, **kwargs: Any) -> Any:
            key = None if self._recorder.is_paused else _key(model, args, kwargs)
            if key is None:
                return original(model, *args, **kwargs)
            known = self._known.setdefault(_models(model)[0], {}).setdefault(key, _Generation())
            if known.result is not None:
                return self._repeat(known)
            before, live = self._recorder.position(), dict(self._recorder.live_bytes)
            result = original(model, *args, **kwargs)
            self._add(known, result, before, live)
            return result

        return generate

    def _add(self, known: _Generation, result: Any, before: Any, live: dict[int, int]) -> None:
        events, left = self._recorder.events_since(before)
        is_alike = events is not None and (events == known.events or len(events) > _EVENTS_OF_LONG)
        known.events = events
        ids, wrap = _token_ids(result)
        if not is_alike or ids is None or left != {self._recorder.storage_id(ids)}:
            return
        known.result, known.wrap = (tuple(ids.shape), ids.dtype, ids.device), wrap
        tokens = self._values.peek(ids)
        known.tokens = None if tokens is None else tokens.clone()
        known.span, known.live, known.events = self._recorder.span_since(before), live, None

    def _repeat(self, known: _Generation) -> Any:
        assert known.result is not None
        least = 1 + _MUCH_MORE if self._recorder.event_count > _MAX_EVENTS else 1
        is_more = any(nbytes > least * known.live.get(gpu, 0) for gpu, nbytes in self._recorder.live_bytes.items())
        if is_more:
            known.live = dict(self._recorder.live_bytes)
            self._recorder.pause()
        shape, dtype, device = known.result
        made = torch.empty(shape, dtype=dtype, device=device)
        if is_more:
            self._recorder.resume(known.span)
        if known.tokens is not None:
            self._values.assume(made, known.tokens.clone(), GENERATED_TEXT)
        return known.wrap(made)


def _token_ids(result: Any) -> tuple[FakeTensor | None, Callable[[torch.Tensor], Any]]:
    """The tokens of a result, None where it has more than them, and what makes such a result of tokens."""
    if isinstance(result, FakeTensor):
        return result, lambda made: made
    present = dict(result) if isinstance(result, Mapping) else {}  # a `ModelOutput` has no entry that is None
    ids = present.get("sequences")
    if len(present) > 1 or not isinstance(ids, FakeTensor):
        return None, lambda made: made
    kind = type(result)  # the result itself would hold its tokens
    return ids, lambda made: kind(sequences=made)


def _key(model: Any, args: Any, kwargs: dict[str, Any]) -> object | None:
    """Inputs without values, and settings; None where one of them is of another type, such as a stopping criterion.

    What mixes models and is none itself, as TRL makes anew for each text of its Nash-MD, is known by what it has.
    """
    parts = _models(model)
    if not parts:
        return None
    identity = None if parts == [model] else (type(model), *map(weakref.ref, parts), _plain_values(model))
    settings = [kwargs.get("generation_config"), getattr(model, "generation_config", None)]
    texts = [_settings_text(setting) for setting in settings]
    plain = {name: value for name, value in kwargs.items() if name != "generation_config" and value is not None}
    inputs = signature(parts[0], args, plain)
    if None in texts or inputs is None:
        return None
    return (inputs, tuple(part.training for part in parts), identity, *texts)


def _models(model: Any) -> list[torch.nn.Module]:
    """The model, or those that an object has which is none itself."""
    if isinstance(model, torch.nn.Module):
        return [model]
    return [value for value in vars(model).values() if isinstance(value, torch.nn.Module)]


def _plain_values(model: Any) -> tuple[tuple[str, object], ...]:
    return tuple((name, value) for name, value in vars(model).items() if isinstance(value, (bool, int, float, str)))


def _settings_text(settings: Any) -> str | None:
    if settings is None:
        return ""
    try:
        return str(settings.to_json_string(use_diff=False))
    except (AttributeError, TypeError, ValueError):
        return None
