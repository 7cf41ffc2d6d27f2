"""The reference of the configuration: every key that the loader accepts, with its type, default and meaning."""

from __future__ import annotations

import dataclasses

import pytest

from cotenant.core.errors import UsageError
from cotenant.daemon.config import reference
from cotenant.daemon.config.loader import load
from cotenant.daemon.config.schema import Config
from cotenant.daemon.config.value_types import type_name

KEYS = {(item.section, item.key): item for item in reference()}


def test_every_key_of_every_section_is_listed_with_a_meaning():
    config = Config()
    expected = [
        (section.name, item.name)
        for section in dataclasses.fields(Config)
        for item in dataclasses.fields(getattr(config, section.name))
    ]
    assert list(KEYS) == expected
    assert all(item.help and not item.help.endswith(".") for item in KEYS.values())


def test_types_and_defaults_are_readable():
    tick, fsync = KEYS["daemon", "tick_s"], KEYS["daemon", "fsync"]
    assert (tick.type, tick.default, tick.variable) == ("a number above zero", "1", "COTENANT_DAEMON__TICK_S")
    assert (fsync.type, fsync.default) == ("one of `full`, `normal`", '"full"')
    assert KEYS["gpus", "simulate"].default == "none"
    assert KEYS["gpus", "fake_cuda"].default == "true"
    assert KEYS["policy", "options"].type == "a table"
    assert type_name(int | None) == "a whole number"


@pytest.mark.parametrize("place", [place for place, item in KEYS.items() if item.type.endswith("above zero")], ids=str)
def test_keys_above_zero_refuse_zero(place):
    section, key = place
    with pytest.raises(UsageError, match=f"`{section}.{key}` is 0, wanted a number above zero"):
        load([], {}, {section: {key: 0}})
