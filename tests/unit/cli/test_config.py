"""`cotenant config` over files and variables."""

from __future__ import annotations

import json

import pytest

from cotenant.cli.main import main


@pytest.fixture
def home(tmp_path, monkeypatch):
    """A user's configuration folder, empty."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    folder = tmp_path / "cotenant"
    folder.mkdir()
    return folder


def test_config_show_prints_a_file_that_loads_to_the_same_output(home, capsys, tmp_path):
    (home / "config.toml").write_text("[daemon]\ntick_s = 0.5\nlog_level = 'debug'\n[policy.options]\nwarmup_s = 3\n")
    assert main(["config", "show"]) == 0
    text = capsys.readouterr().out
    (home / "config.toml").write_text(text)
    assert main(["config", "show"]) == 0
    assert capsys.readouterr().out == text
    assert "tick_s = 0.5\n" in text


def test_config_show_names_the_origin_of_each_value(home, capsys, monkeypatch):
    (home / "config.toml").write_text("[daemon]\ntick_s = 0.5\n")
    monkeypatch.setenv("COTENANT_GPUS__SIMULATE", "1xT4-16GB")
    assert main(["config", "show", "--origin"]) == 0
    lines = [line.split("  # ") for line in capsys.readouterr().out.splitlines() if "  # " in line]
    origins = {text.strip(): origin for text, origin in lines}
    assert origins["tick_s = 0.5"] == str(home / "config.toml")
    assert origins['simulate = "1xT4-16GB"'] == "environment variable COTENANT_GPUS__SIMULATE"
    assert origins['backend = "auto"'] == "default"
    assert origins["# state_dir is not set"] == "default"


def test_config_show_as_json_has_sections_keys_and_origins(home, capsys):
    assert main(["config", "show", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["settings"]
    assert {"section": "daemon", "key": "fsync", "value": "full", "origin": "default"} in found


def test_config_check_accepts_a_valid_file(home, capsys):
    path = home / "config.toml"
    path.write_text("[policy]\nname = 'exclusive'\n")
    assert main(["config", "check"]) == 0
    assert capsys.readouterr().out == f"{path}: ok\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[policy]\nname = 'bestfit'", "no policy named `bestfit`"),
        ("[policy.options]\nsmact = 1", "smact"),
        ("[daemon]\ntick = 1", "no key `tick` in `daemon`"),
        ("[daemon", "expected"),
        ("[quotas.users.ann]\njobz = 1", "`quotas.users.ann` must be a table of"),
        ("[estimates]\nestimator = 'tracd'", "no estimator named `tracd`"),
        ("[gpus]\nsimulate = 'many'", "`many` is not"),
        ("[tcp]\nlisten = 'gpu1'", "`gpu1` is no address to listen on"),
        ("[tcp]\nlisten = '0.0.0.0:7411'", "without tls"),
        ("[tcp]\nlisten = '127.0.0.1:7411'\ntls_key = 'x'", "both tcp.tls_cert and tcp.tls_key"),
        ("[access]\nadmins = 'no-such-user-here'", "names `no-such-user-here`, and this machine has no such user"),
        ("[mps]\nthread_percent = 140", "wanted at most 100"),
        ("[policy]\nname = 'tiresias'\n[scheduling]\nageing_per_hour = -1", "ageing"),
    ],
)
def test_config_check_refuses_an_invalid_file(tmp_path, capsys, text, message):
    path = tmp_path / "mine.toml"
    path.write_text(text)
    assert main(["config", "check", str(path)]) == 2
    assert message in capsys.readouterr().err.lower()


def test_config_check_of_a_missing_file_is_a_usage_error(tmp_path, capsys):
    assert main(["config", "check", str(tmp_path / "none.toml")]) == 2
    assert "no file" in capsys.readouterr().err
