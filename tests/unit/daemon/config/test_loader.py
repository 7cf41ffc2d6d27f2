"""Layers of configuration: which wins, and what is refused where."""

from __future__ import annotations

import pytest

from cotenant.core.errors import UsageError
from cotenant.daemon.config.loader import Config, effective_values, load


def loaded(tmp_path, *files, env=None, flags=None):
    paths = []
    for i, text in enumerate(files):
        paths.append(tmp_path / f"{i}.toml")
        paths[-1].write_text(text)
    return load([tmp_path / "absent.toml", *paths], env or {}, flags or {})


def test_defaults_without_files_and_variables(tmp_path):
    assert loaded(tmp_path) == Config()


def test_later_layers_win(tmp_path):
    etc = "[daemon]\ntick_s = 1.5\nlog_level = 'debug'\n[policy]\nname = 'exclusive'\n[gpus]\nbackend = 'nvml'"
    own = "[daemon]\ntick_s = 2\n[policy]\nname = 'best-fit'\n[gpus]\nbackend = 'simulated'"
    env = {"COTENANT_POLICY__NAME": "first-fit", "COTENANT_GPUS__BACKEND": "auto", "COTENANT_SOCKET": "/x", "HOME": "/"}
    config = loaded(tmp_path, etc, own, env=env, flags={"gpus": {"backend": "nvml", "simulate": None}})
    assert config.daemon.log_level == "debug"  # /etc only
    assert config.daemon.tick_s == 2  # the user's file over /etc
    assert config.policy.name == "first-fit"  # environment over files
    assert config.gpus.backend == "nvml"  # flags over all


def test_a_flag_not_given_changes_nothing(tmp_path):
    assert loaded(tmp_path, "[gpus]\nsimulate = '1xT4-16GB'", flags={"gpus": {"simulate": None}}).gpus.simulate


def test_policy_options_are_merged_and_typed(tmp_path):
    env = {"COTENANT_POLICY__OPTIONS__SMACT_LIMIT": "0.7", "COTENANT_POLICY__OPTIONS__SHARING": "mps"}
    config = loaded(tmp_path, "[policy.options]\nwarmup_s = 3\nsmact_limit = 0.9", env=env)
    assert config.policy.options == {"warmup_s": 3, "smact_limit": 0.7, "sharing": "mps"}


@pytest.mark.parametrize(
    ("env", "section", "key", "value"),
    [
        pytest.param({"COTENANT_DAEMON__TICK_S": "0.25"}, "daemon", "tick_s", 0.25, id="float"),
        pytest.param({"COTENANT_ESTIMATES__CONCURRENCY": "3"}, "estimates", "concurrency", 3, id="int"),
        pytest.param({"COTENANT_ESTIMATES__ENABLED": "false"}, "estimates", "enabled", False, id="bool"),
        pytest.param({"COTENANT_GPUS__SIMULATE": "2xT4-16GB"}, "gpus", "simulate", "2xT4-16GB", id="text"),
    ],
)
def test_environment_is_parsed_by_the_type_of_the_key(tmp_path, env, section, key, value):
    assert getattr(getattr(loaded(tmp_path, env=env), section), key) == value


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        pytest.param("[demon]\nx = 1", "no section `demon` (known: daemon, policy, ", id="section"),
        pytest.param("[daemon]\ntick = 1", "no key `tick` in `daemon` (known: state_dir, tick_s, ", id="key"),
        pytest.param("[daemon]\ntick_s = 'fast'", "`daemon.tick_s` is 'fast', wanted a number", id="type"),
        pytest.param("[daemon]\ntick_s = true", "`daemon.tick_s` is True, wanted a number", id="bool is no number"),
        pytest.param("[daemon]\ntick_s = 0", "`daemon.tick_s` is 0, wanted a number above zero", id="zero"),
        pytest.param("[daemon]\ntick_s = nan", "`daemon.tick_s` is nan, wanted a number", id="not a number"),
        pytest.param("[daemon]\ntick_s = inf", "`daemon.tick_s` is inf, wanted a number", id="infinite"),
        pytest.param("[estimates]\nconcurrency = 1.5", "`estimates.concurrency` is 1.5, wanted a whole", id="fraction"),
        pytest.param("[access]\nusers = 'some'", "wanted one of `own`, `all`", id="choice"),
        pytest.param("daemon = 3", "`daemon` is 3, wanted a table", id="no table"),
        pytest.param("[daemon", "expected", id="no TOML"),
    ],
)
def test_an_error_names_the_file(tmp_path, text, reason):
    with pytest.raises(UsageError) as caught:
        loaded(tmp_path, "", text)
    assert str(caught.value).startswith(str(tmp_path / "1.toml"))
    assert reason in str(caught.value).lower() or reason in str(caught.value)


@pytest.mark.parametrize(
    ("variable", "value", "reason"),
    [
        pytest.param("COTENANT_DAEMON__TICK", "1", "no key `tick` in `daemon`", id="key"),
        pytest.param("COTENANT_NOPE__X", "1", "no section `nope`", id="section"),
        pytest.param("COTENANT_DAEMON__TICK_S", "soon", "`soon` is not a number", id="number"),
        pytest.param("COTENANT_DAEMON__TICK_S", "-1", "wanted a number above zero", id="range"),
    ],
)
def test_an_error_names_the_variable(tmp_path, variable, value, reason):
    with pytest.raises(UsageError, match="environment variable " + variable) as caught:
        loaded(tmp_path, env={variable: value})
    assert reason in str(caught.value)


def test_settings_name_the_source_of_each_value(tmp_path):
    first, second = tmp_path / "first.toml", tmp_path / "second.toml"
    first.write_text("[daemon]\ntick_s = 2\nlog_level = 'debug'\n[policy.options]\nwarmup_s = 3\nsmact_limit = 0.9")
    second.write_text("[daemon]\nlog_level = 'info'")
    env = {"COTENANT_POLICY__OPTIONS__SMACT_LIMIT": "0.7"}
    found = {
        (value.section, value.key): (value.value, value.origin) for value in effective_values([first, second], env)
    }
    assert found["daemon", "tick_s"] == (2, str(first))
    assert found["daemon", "log_level"] == ("info", str(second))
    assert found["daemon", "fsync"] == ("full", "default")
    assert found["policy", "options.warmup_s"] == (3, str(first))
    variable = "environment variable COTENANT_POLICY__OPTIONS__SMACT_LIMIT"
    assert found["policy", "options.smact_limit"] == (0.7, variable)
    assert ("policy", "options") not in found


@pytest.mark.parametrize(
    ("text", "renamed"),
    [
        pytest.param("[scheduling]\noverrun = 'tell'", {("scheduling", "overrun"): "report"}, id="overrun"),
        pytest.param("[idle]\naction = 'tell'", {("idle", "action"): "notify"}, id="idle"),
    ],
)
def test_a_value_of_an_earlier_version_is_read_by_its_name_of_today(tmp_path, text, renamed):
    path = tmp_path / "config.toml"
    path.write_text(text)
    found = {(value.section, value.key): value.value for value in effective_values([path], {})}
    assert {key: found[key] for key in renamed} == renamed


def test_a_renamed_value_is_only_read_where_it_was_one(tmp_path):
    path = tmp_path / "config.toml"
    path.write_text("[policy]\nname = 'tell'")
    assert load([path], {}, {}).policy.name == "tell"


def test_settings_equal_the_loaded_configuration(tmp_path):
    assert [value.origin for value in effective_values([tmp_path / "absent.toml"], {})].count("default") == len(
        effective_values([], {})
    )
