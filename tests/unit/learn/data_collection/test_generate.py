"""Drawn configurations are seeded, distinct, spread evenly, and valid."""

from __future__ import annotations

from collections import Counter

import pytest

from cotenant.core.errors import UnknownName, UsageError
from cotenant.learn.data_collection.configs import config_id, fields_of, parse_id
from cotenant.learn.data_collection.generate import generate, read_configs, write_configs
from cotenant.learn.data_collection.ranges import Span, load_ranges, parse_ranges, shipped

TINY = """
family = "mlp"
shape = ["pyramid", "uniform"]
inputs = { from = 8, to = 64, by = "log" }
classes = { from = 2, of = "inputs", share = 0.5 }
depth = [1, 2, 3]
batch = { from = 1, to = 32 }
activation = ["relu"]
norm = ["nonorm", "batchnorm"]
dropout = { from = 100, to = 500, none = 0.25 }
optimizer = ["adam"]
precision = ["fp32"]
"""


def test_configurations_follow_from_the_seed():
    ranges = parse_ranges(TINY, "tiny")
    assert generate(ranges, 20, 0) == generate(ranges, 20, 0)
    assert not set(generate(ranges, 20, 0)) & set(generate(ranges, 20, 1))


def test_every_setting_is_spread_evenly():
    found = generate(parse_ranges(TINY, "tiny"), 240, 7)
    assert Counter(config.shape for config in found) == {"pyramid": 120, "uniform": 120}
    assert Counter(config.depth for config in found) == {1: 80, 2: 80, 3: 80}
    assert sum(config.dropout == 0 for config in found) == 60
    assert {0} | set(range(100, 501)) >= {config.dropout for config in found}
    # Each of the three doublings of 8..64 has as many draws (64 itself is the end of the range).
    doublings = Counter(min(config.inputs.bit_length(), 6) for config in found)
    assert all(75 <= count <= 85 for count in doublings.values())
    quarters = Counter((config.batch - 1) // 8 for config in found)
    assert all(58 <= count <= 62 for count in quarters.values())


@pytest.mark.parametrize("by", ["even", "log"])
def test_both_ends_of_a_range_are_drawn(by):
    ranges = parse_ranges(TINY.replace("from = 1, to = 32", f'from = 3, to = 5, by = "{by}"'), "tiny")
    assert {config.batch for config in generate(ranges, 60, 0)} == {3, 4, 5}


def test_a_bounded_setting_stays_below_its_bound():
    found = generate(parse_ranges(TINY, "tiny"), 200, 3)
    assert all(2 <= config.classes <= max(2, config.inputs // 2) for config in found)
    assert max(config.classes for config in found) > 25


def test_a_setting_is_bounded_by_shares_of_another_on_both_sides():
    shares = TINY.replace('from = 2, of = "inputs", share = 0.5', 'from_share = 0.5, of = "inputs", share = 2')
    found = generate(parse_ranges(shares, "tiny"), 200, 3)
    assert all(config.inputs / 2 <= config.classes <= 2 * config.inputs for config in found)
    ratios = sorted(config.classes / config.inputs for config in found)
    assert ratios[0] < 0.55
    assert ratios[-1] > 1.95


def test_batch_norm_has_at_least_two_samples():
    found = generate(parse_ranges(TINY.replace("to = 32 }", "to = 2 }"), "tiny"), 60, 0)
    assert {(config.norm, config.batch) for config in found} == {("nonorm", 1), ("nonorm", 2), ("batchnorm", 2)}


def test_ranges_with_too_few_configurations_are_refused():
    few = TINY.replace('{ from = 8, to = 64, by = "log" }', "[8]").replace("{ from = 1, to = 32 }", "[4]")
    few = few.replace("{ from = 100, to = 500, none = 0.25 }", "[0]").replace('of = "inputs", share = 0.5', "to = 2")
    ranges = parse_ranges(few, "few")
    assert len(generate(ranges, 12, 0)) == 12
    with pytest.raises(UsageError, match="only 12 different configurations are in `few`, wanted 13"):
        generate(ranges, 13, 0)


@pytest.mark.parametrize("name", shipped())
def test_shipped_ranges_draw_every_word(name):
    ranges = load_ranges(name)
    found = generate(ranges, 150, 0)
    assert len({config_id(config) for config in found}) == 150
    for config in found:
        assert parse_id(config_id(config)) == config
    for setting, words in fields_of(ranges.family).items():
        allowed = getattr(ranges.ranges[setting], "values", ())
        seen = {getattr(config, setting) for config in found}
        if words:
            assert seen == set(allowed)
    assert {config.shape for config in found} == set(ranges.ranges["shape"].values)


def test_settings_without_effect_have_one_value():
    found = generate(load_ranges("transformer"), 100, 0)
    assert {config.heads for config in found if config.shape == "conv1d"} == {1}
    assert all(config.classes == config.vocabulary for config in found if config.shape == "gpt")
    assert all(config.width % config.heads == 0 for config in found)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        pytest.param('family = "mlp"', 'family = "gnn"', "`family` is 'gnn', wanted one of mlp", id="family"),
        pytest.param("depth = [1, 2, 3]", "", "`depth` is missing for `mlp`", id="missing"),
        pytest.param("depth = [1, 2, 3]", "depth = [1]\nwidth = [3]", "`width` is not known for `mlp`", id="unknown"),
        pytest.param("[1, 2, 3]", "3", "`depth` is 3, wanted a list, or a table", id="number"),
        pytest.param("[1, 2, 3]", "[1, 1]", "each once", id="twice"),
        pytest.param("[1, 2, 3]", "[]", "wanted one or more values", id="none"),
        pytest.param("[1, 2, 3]", '["deep"]', "`depth` holds 'deep', wanted only whole numbers", id="text"),
        pytest.param('["relu"]', '["sine"]', "`activation` holds 'sine', wanted only relu", id="word"),
        pytest.param(
            '["relu"]', "{ from = 1, to = 2 }", "`activation` is {'from': 1, 'to': 2}, wanted a list", id="span"
        ),
        pytest.param("from = 1, to = 32", "from = 32, to = 1", "from 32 to 1", id="order"),
        pytest.param("from = 1, to = 32", "from = 1", "wanted either `to` or `of`", id="no end"),
        pytest.param("from = 1, to = 32", "from = 1, to = 2, step = 2", "`step` is not known", id="key"),
        pytest.param("from = 1, to = 32", 'from = 0, to = 2, by = "log"', "`by` is 'log'", id="log of 0"),
        pytest.param('of = "inputs"', 'of = "classes"', "bound to `classes`", id="bound to itself"),
        pytest.param("share = 0.5", "share = 0", "`share` is 0", id="share"),
        pytest.param("share = 0.5", "share = true", "`share` is True", id="share of a word"),
        pytest.param("from = 2, of", "from = 2, from_share = 0.1, of", "takes the place of `from`", id="two starts"),
        pytest.param("from = 2, of", "from_share = 0.6, of", "`from_share` is 0.6, wanted 0 to", id="start above end"),
        pytest.param("none = 0.25", "none = 2", "`none` 2", id="none share"),
        pytest.param('family = "mlp"', "family = ", "invalid TOML", id="toml"),
    ],
)
def test_wrong_ranges_are_refused_with_the_key(old, new, message):
    assert old in TINY
    with pytest.raises(UsageError, match=r"^tiny: ") as error:
        parse_ranges(TINY.replace(old, new), "tiny")
    assert message in error.value.message


def test_ranges_are_loaded_by_name_or_path(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text(TINY)
    assert load_ranges(str(path)).ranges["batch"] == Span(low=1, high=32)
    with pytest.raises(UnknownName, match="no file of ranges named `mpl`"):
        load_ranges("mpl")
    with pytest.raises(UsageError, match=r"cannot read `.*none\.toml`: no such file"):
        load_ranges(str(tmp_path / "none.toml"))


def test_a_file_of_configurations_is_read_back(tmp_path):
    ranges = parse_ranges(TINY, "tiny")
    configs = generate(ranges, 5, 0)
    path = tmp_path / "deep" / "configs.txt"
    write_configs(path, configs, ranges, 0)
    assert path.read_text().startswith("# 5 configurations from `tiny`, seed 0\nmlp_")
    assert read_configs(path) == configs


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("# nothing\n", "holds no configuration"),
        ("\nmlp_x\n", r":2: `mlp_x` is not a configuration id"),
        ("{0}\n{0}\n", r":2: `mlp_.*` is there twice"),
    ],
)
def test_an_invalid_file_of_configurations_is_refused(tmp_path, text, message):
    path = tmp_path / "configs.txt"
    path.write_text(text.format(config_id(generate(parse_ranges(TINY, "tiny"), 1, 0)[0])))
    with pytest.raises(UsageError, match=message):
        read_configs(path)
