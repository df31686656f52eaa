"""Default state folder by the environment."""

from pathlib import Path

from wattline.command_line import user_state_folder


def test_state_folder_follows_xdg_state_home():
    assert user_state_folder({"XDG_STATE_HOME": "/srv/state", "HOME": "/home/ann"}) == Path(
        "/srv/state/wattline"
    )


def test_state_folder_relative_xdg_state_home_is_ignored():
    assert user_state_folder({"XDG_STATE_HOME": "state", "HOME": "/home/ann"}) == Path(
        "/home/ann/.local/state/wattline"
    )


def test_state_folder_without_environment_is_in_the_home_of_the_user():
    assert user_state_folder({}) == Path.home() / ".local/state/wattline"
