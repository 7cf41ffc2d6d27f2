from pathlib import Path

import pytest

from cotenant.osutil.cache_folder import cache_folder


@pytest.mark.parametrize(
    ("env", "folder"),
    [
        ({"HOME": "/home/ann"}, "/home/ann/.cache/cotenant/traces"),
        ({"HOME": "/home/ann", "XDG_CACHE_HOME": "/fast"}, "/fast/cotenant/traces"),
        ({"HOME": "/home/ann", "XDG_CACHE_HOME": "relative"}, "/home/ann/.cache/cotenant/traces"),
        ({"XDG_CACHE_HOME": "/fast"}, "/fast/cotenant/traces"),
    ],
)
def test_the_folder_follows_the_environment(env, folder):
    assert cache_folder("traces", env) == Path(folder)


@pytest.mark.parametrize("env", [{}, {"HOME": ""}, {"HOME": "relative"}, {"XDG_CACHE_HOME": "relative"}])
def test_a_user_without_a_home_directory_has_none(env):
    assert cache_folder("traces", env) is None
