"""A directory is refused if other users could replace it: every directory and link on the way is examined."""

from __future__ import annotations

import grp
import os
import pwd
import shutil
import struct
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import fxpool
from fxpool import config, directories

OTHER, GROUP = 12345, 12346
AS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="only root can change the owner of a directory")


def danger_above(path: str) -> directories.Danger | None:
    return directories.danger_above(path, config.trusted_owners())


@pytest.fixture
def above() -> Iterator[Path]:
    """A directory of root's or ours, with `above/inner/cache` in it."""
    place = Path(tempfile.mkdtemp(prefix="fxpd-", dir="/tmp"))
    (place / "inner" / "cache").mkdir(parents=True, mode=0o700)
    (place / "inner").chmod(0o755)
    yield place
    shutil.rmtree(place)


def _given(path: Path, mode: int = 0o755, owner: int = -1, group: int = -1) -> None:
    path.chmod(mode)
    os.chown(path, owner, group)
    path.chmod(mode)


def _acl(path: Path) -> None:
    """A list that lets another user write, as ``setfacl -m u:12345:rwx`` makes it."""
    entries = [(0x01, 7, 0xFFFFFFFF), (0x02, 7, OTHER), (0x04, 5, 0xFFFFFFFF), (0x10, 7, 0xFFFFFFFF),
               (0x20, 5, 0xFFFFFFFF)]  # fmt: skip
    packed = struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *entry) for entry in entries)
    try:
        os.setxattr(path, "system.posix_acl_access", packed)
    except OSError as error:
        pytest.skip(f"no access control lists here: {error}")


DANGERS: dict[str, Callable[[Path], None]] = {
    "another user's": lambda path: _given(path, owner=OTHER),
    "another user's, closed to all others": lambda path: _given(path, 0o711, owner=OTHER),
    "another user's, sticky": lambda path: _given(path, 0o1777, owner=OTHER),
    "for everybody": lambda path: _given(path, 0o777),
    "for everybody but the owner's group": lambda path: _given(path, 0o757),
    "for a group": lambda path: _given(path, 0o775, group=GROUP),
    "for a group, in which the bit for groups is inherited": lambda path: _given(path, 0o2775, group=GROUP),
    "for a named user": _acl,
}


@AS_ROOT
@pytest.mark.parametrize("danger", DANGERS)
@pytest.mark.parametrize("cache", ["inner/cache", "inner/not/there/yet"])
def test_a_directory_above_in_which_others_can_rename_is_a_danger(above: Path, danger: str, cache: str) -> None:
    assert danger_above(str(above / cache)) is None
    DANGERS[danger](above / "inner")
    found = danger_above(str(above / cache))
    assert found is not None and found.path == str(above / "inner") and found.mend


@AS_ROOT
@pytest.mark.parametrize("danger", DANGERS)
@pytest.mark.parametrize("way", ["the link's directory", "the target's", "a link's to the link", "behind two dots"])
def test_so_is_one_that_only_a_link_leads_through(above: Path, danger: str, way: str) -> None:
    (above / "links").mkdir()
    dangerous = above / "links"
    if way == "the link's directory":
        (above / "links" / "link").symlink_to(above / "inner" / "cache")
        path = above / "links" / "link"
    elif way == "the target's":
        (above / "links" / "cache").mkdir(mode=0o700)
        (above / "link").symlink_to("links/cache")
        path = above / "link"
    elif way == "a link's to the link":
        (above / "links" / "second").symlink_to(above / "inner" / "cache")
        (above / "first").symlink_to(above / "links" / "second")
        path = above / "first"
    else:
        (above / "links" / "here").mkdir()
        (above / "link").symlink_to("links/here/../../inner/cache")
        path = above / "link"
    assert danger_above(str(path)) is None
    DANGERS[danger](dangerous)
    found = danger_above(str(path))
    assert found is not None and found.path == str(dangerous)


@AS_ROOT
def test_a_link_of_another_user_is_a_danger(above: Path) -> None:
    link = above / "link"
    link.symlink_to(above / "inner")
    os.lchown(link, OTHER, OTHER)
    danger = danger_above(str(link / "cache"))
    assert danger is not None and danger.path == str(link) and "symbolic link" in danger.fault


def test_a_sticky_directory_is_safe(above: Path) -> None:
    (above / "inner").chmod(0o1777)
    assert danger_above(str(above / "inner" / "cache")) is None


def test_a_loop_of_links_ends(above: Path) -> None:
    (above / "one").symlink_to("two")
    (above / "two").symlink_to("one")
    assert danger_above(str(above / "one" / "cache")) is None


@AS_ROOT
def test_owners_are_trusted_by_name_and_number(above: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _given(above / "inner", owner=OTHER)
    (above / "link").symlink_to("inner/cache")
    os.lchown(above / "link", 1, 1)
    place = str(above / "link")
    assert danger_above(place) is not None
    monkeypatch.setenv("FXPOOL_TRUSTED_OWNERS", f"{OTHER}, {pwd.getpwuid(1).pw_name}")
    assert danger_above(place) is None
    assert config.trusted_owners() == {0, 1, OTHER, os.geteuid()}
    _given(above / "inner", 0o777, owner=OTHER)
    assert danger_above(place) is not None, "an owner is trusted, and not everybody"


@pytest.mark.parametrize("value", ["no-such-user", "0x10", ",", "-1"])
def test_unknown_trusted_owners_are_refused(value: str) -> None:
    with pytest.raises(fxpool.errors.ConfigurationError, match="a list of users"):
        fxpool.configure(trusted_owners=value)


# -------------------------------------------------------------------------------------- groups


@pytest.fixture(autouse=True)
def _groups_are_asked_for_again() -> Iterator[None]:
    known = directories._is_private_group
    known.cache_clear()
    yield
    known.cache_clear()


def _users(monkeypatch: pytest.MonkeyPatch, group: Any, others: list[Any]) -> None:
    me = SimpleNamespace(pw_name="me", pw_uid=os.geteuid(), pw_gid=GROUP)
    monkeypatch.setattr(pwd, "getpwuid", lambda uid: me)
    monkeypatch.setattr(pwd, "getpwall", lambda: [me, *others])
    monkeypatch.setattr(grp, "getgrgid", lambda gid: group)


@pytest.mark.parametrize(
    ("name", "members", "others", "safe"),
    [
        ("me", [], [], True), ("me", ["me"], [], True), ("me", ["me", "them"], [], False), ("staff", [], [], False),
        ("me", [], [("them", OTHER)], False), ("me", [], [("me again", None)], True),
    ],
)  # fmt: skip
def test_a_group_is_private_if_this_user_is_its_one_member(
    above: Path, monkeypatch: pytest.MonkeyPatch, name: str, members: list[str], others: list[Any], safe: bool
) -> None:
    os.chown(above / "inner", -1, GROUP) if os.geteuid() == 0 else None
    (above / "inner").chmod(0o775)
    rows = [SimpleNamespace(pw_name=one, pw_uid=uid or os.geteuid(), pw_gid=GROUP) for one, uid in others]
    _users(monkeypatch, SimpleNamespace(gr_name=name, gr_mem=members), rows)
    group = (above / "inner").stat().st_gid
    monkeypatch.setattr(pwd.getpwuid(0), "pw_gid", group)
    for row in rows:
        row.pw_gid = group
    assert (danger_above(str(above / "inner" / "cache")) is None) == safe


def test_a_private_group_s_directory_with_a_list_is_a_danger(above: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(directories, "_is_private_group", lambda gid: True)
    (above / "inner").chmod(0o775)
    assert danger_above(str(above / "inner" / "cache")) is None
    _acl(above / "inner")
    assert danger_above(str(above / "inner" / "cache")) is not None


def test_the_group_of_root_is_private_to_root_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Any user may have it, with ``docker run --user 1234`` for example."""
    me = SimpleNamespace(pw_name="me", pw_uid=1234, pw_gid=1234)
    monkeypatch.setattr(pwd, "getpwuid", lambda uid: me)
    assert not directories._is_private_group(0)


# -------------------------------------------------------------------------- user namespaces


@AS_ROOT
def test_users_outside_the_namespace_are_trusted_like_root(above: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a container without root, every directory of the host has this owner."""
    _given(above / "inner", owner=OTHER)
    monkeypatch.setattr(directories, "_outside", lambda: OTHER)
    assert danger_above(str(above / "inner" / "cache")) is None
    _given(above / "inner", 0o777, owner=OTHER)
    assert danger_above(str(above / "inner" / "cache")) is not None


@AS_ROOT
@pytest.mark.parametrize("mode", [0o755, 0o777])
def test_so_it_is_in_a_real_namespace(above: Path, mode: int) -> None:
    program = "import sys; from fxpool import config, directories\n"
    program += "print(directories.danger_above(sys.argv[1], config.trusted_owners()) is None)"
    command = [sys.executable, "-c", program, str(above / "inner" / "cache")]
    unshared = ["unshare", "--user", "--map-root-user"]
    if shutil.which("unshare") is None or subprocess.run([*unshared, "true"], capture_output=True).returncode:
        pytest.skip("no user namespace can be made here")
    _given(above / "inner", mode, owner=OTHER)
    said = [
        subprocess.run(one, capture_output=True, text=True, check=True).stdout for one in (command, unshared + command)
    ]
    assert said == ["False\n", f"{mode == 0o755}\n"]


@AS_ROOT
def test_nobody_is_another_user_where_nobody_is_outside(above: Path) -> None:
    """Its uid stands for users outside, except where it is a user's."""
    _given(above / "inner", owner=65534)
    assert danger_above(str(above / "inner" / "cache")) is not None
