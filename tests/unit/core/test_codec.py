"""Dataclasses to JSON and back: the fast decoder gives what the slow one gives, and leaves errors to it."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal

import pytest

from builders import a_job, a_spec
from cotenant.core import codec, fast_decoder
from cotenant.core.codec import CodecError, decode, encode, to_json
from cotenant.core.events import JobHeld, Journaled
from cotenant.core.job import Done, Job


@dataclass(frozen=True, kw_only=True)
class Leaf:
    name: str = "leaf"


@dataclass(frozen=True, kw_only=True)
class Tree:
    count: int
    ratio: float = 0.0
    name: str | None = None
    kind: Literal["oak", "elm"] = "oak"
    sizes: tuple[int, ...] = ()
    pair: tuple[int, str] = (1, "a")
    texts: Mapping[str, str] = field(default_factory=dict)
    deep: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    either: int | float = 1
    part: Leaf | None = None
    child: Tree | None = None
    anything: Any = None


def tree(**changes):
    return {"type": "Tree", "count": 1, **changes}


@pytest.mark.parametrize(
    "value",
    [
        tree(),
        {"count": 1},
        tree(
            ratio=3, name="x", kind="elm", sizes=[1, 2], texts={"a": "b"}, deep={"a": [1, 2.5]}, part={"type": "Leaf"}
        ),
        tree(child=tree(child=tree(count=2)), pair=[2, "b"], anything=[1, {"a": None}]),
        tree(either=2.5),
        tree(part=None, name=None),
    ],
)
def test_the_fast_and_the_slow_decoder_agree(value):
    slow = codec._decode(Tree, value, "value")
    assert decode(Tree, value) == slow
    assert repr(decode(Tree, value)) == repr(slow)


@pytest.mark.parametrize("value", [tree(), tree(sizes=[1, 2], texts={"a": "b"}, child=tree(), name=None, ratio=2)])
def test_the_fast_decoder_decodes_what_fits(value):
    assert fast_decoder.decoder(Tree)(value) == decode(Tree, value)


@pytest.mark.parametrize(
    ("value", "says"),
    [
        (tree(count="1"), "`value.count` is '1', wanted int"),
        (tree(count=True), "`value.count` is True, wanted int"),
        (tree(count=None), "`value.count` is None, wanted int"),
        (tree(ratio="x"), "`value.ratio` is 'x', wanted float"),
        (tree(kind="fir"), "wanted one of"),
        (tree(sizes="12"), "wanted an array"),
        (tree(sizes=[1, "2"]), r"`value.sizes\[1\]`"),
        (tree(pair=[1]), "wanted 2 items"),
        (tree(texts={"a": 1}), "`value.texts.a` is 1, wanted str"),
        (tree(texts=[]), "wanted an object"),
        (tree(deep={"a": [None]}), r"`value.deep.a\[0\]`"),
        (tree(child=tree(count=[])), "`value.child.count`"),
        (tree(part={"type": "Tree", "count": 1}), "`value.part`"),
        (tree(more=1), "unknown fields: more"),
        ({"type": "Leaf", "count": 1}, "is a Leaf, wanted a Tree"),
        ({"type": "Tree"}, "is not a complete Tree"),
        ([], "wanted a Tree"),
    ],
)
def test_a_value_that_does_not_fit_is_refused_with_its_place(value, says):
    with pytest.raises(CodecError, match=says):
        decode(Tree, value)


def test_a_union_decodes_as_the_named_type():
    held = JobHeld(at_s=1.0, cause="x", job_id=2)
    assert decode(Journaled, encode(held)) == held
    with pytest.raises(CodecError, match="wanted one of: JobSubmitted"):
        decode(Journaled, {"type": "Job"})


def test_lean_encoding_omits_defaults():
    assert encode(Tree(count=0), lean=True) == {"type": "Tree", "count": 0}
    assert encode(Tree(count=0, part=Leaf()), lean=True) == {"type": "Tree", "count": 0, "part": {"type": "Leaf"}}
    job = a_job(3, declared_bytes=5, env={"A": "b"}, time_limit_s=0.0)
    assert "time_limit_s" in encode(job, lean=True)["spec"]
    for value in (job, Job(id=1, spec=a_spec(), submitted_at_s=0.0, state=Done(outcome="failed", at_s=1.0, code=0))):
        assert decode(Job, json.loads(json.dumps(encode(value, lean=True)))) == value
    assert len(json.dumps(encode(job, lean=True))) < len(json.dumps(encode(job))) / 2


@pytest.mark.parametrize(
    "value",
    [
        Tree(count=1),
        Tree(count=1, ratio=0.5, name="ä\ud800", sizes=(1, 2), texts={"a": "b"}, child=Tree(count=2), part=Leaf()),
        Tree(count=1, texts=MappingProxyType({"a": "b"}), anything=[1, (2, None), {"x": Leaf()}]),
        JobHeld(at_s=1.0, cause="x", job_id=2),
        a_job(3, declared_bytes=5, env={"A": "b"}),
        None,
        {"a": (Leaf(), True)},
    ],
)
def test_json_text_equals_the_encoded_value(value):
    assert to_json(value) == json.dumps(encode(value), separators=(",", ":"))


@pytest.mark.parametrize(("value", "error"), [(Tree(count=1, anything={1}), CodecError), (math.nan, ValueError)])
def test_values_without_a_json_form_are_refused(value, error):
    with pytest.raises(error):
        to_json(value)
