"""Rows about home, temporary, cache and runtime directories, their rights, their owners and the umask."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable
from pathlib import Path

from harness.places import link_toolchain

from fxpool.errors import PoolError
from fxpool.pool.host.runtime_dir import runtime_root

from .environment import Site
from .needs import NOBODY, mounts, no_root, root, two_users
from .row import PLAIN, Row
from .verdict import Expected

__all__ = ["ROWS", "reachable_for_others", "toolchain_in"]

# Something of it may have to be done without, and then that is said.
_SAID = Expected(pool=None, cache=None)
_POOL_ONLY = Expected(pool=True, cache=None)

_CACHE, _RUNTIME = "{root}/cache", "{root}/run"


def _made(*names: str, mode: int = 0o700, owner: int | None = None) -> Callable[[Site], None]:
    def prepare(site: Site) -> None:
        for name in names:
            path = Path(site.text(name))
            path.mkdir(parents=True, exist_ok=True)
            path.chmod(mode)
            if owner is not None:
                os.chown(path, owner, owner)

    return prepare


def _link(name: str, target: str) -> Callable[[Site], None]:
    def prepare(site: Site) -> None:
        _made(target)(site)
        Path(site.text(name)).symlink_to(site.text(target))

    return prepare


def toolchain_in(name: str) -> Callable[[Site], None]:
    """A cache directory elsewhere than in the home, the tool chain known there, too."""

    def prepare(site: Site) -> None:
        if site.toolchain is not None:
            link_toolchain(Path(site.text(name)), site.toolchain)

    return prepare


def _stood_in_for(name: str) -> Callable[[Site], None]:
    """A runtime directory that can hold no socket: another with a shorter name, elsewhere, stands in for it."""

    def prepare(site: Site) -> None:
        wanted = Path(site.text(name))
        wanted.parent.mkdir(parents=True, exist_ok=True)
        site.on_exit(lambda: _remove_stand_in(wanted, site))

    return prepare


def _remove_stand_in(wanted: Path, site: Site) -> None:
    with contextlib.suppress(PoolError, OSError):
        root = runtime_root(str(wanted))
        if site.root not in root.parents:
            (root / "host.lock").unlink(missing_ok=True)
            root.rmdir()


def _mounted(options: str, after: str = "true") -> str:
    """A shell with a small file system over the cache directory, invisible to other processes."""
    mount = f"mkdir -p {_CACHE} && mount -t tmpfs -o mode=0700,{options} first-day {_CACHE} && {after}"
    return f'exec unshare -m bash -c \'{mount} && exec "$@"\' bash "$@"'


def _remounted(options: str) -> str:
    """A shell in which the cache directory, which stays for the next run, is mounted otherwise."""
    mount = f"mkdir -p {_CACHE} && mount --bind {_CACHE} {_CACHE} && mount -o remount,bind,{options} {_CACHE}"
    return f'exec unshare -m bash -c \'{mount} && exec "$@"\' bash "$@"'


_SETUID = PLAIN.replace(
    "import torch\n",
    f"""import os
if "first" in os.environ.get("WHO", ""):
    os.setgroups([])
    os.setgid({NOBODY})
    os.setuid({NOBODY})
import torch
""",
    1,
)


def _for_nobody(site: Site) -> None:
    for path in (site.home, site.tmp, site.work):
        for entry in [path, *path.rglob("*")]:
            os.chown(entry, NOBODY, NOBODY, follow_symlinks=False)


def reachable_for_others(command: str) -> str:
    """A shell in which another user may pass through directories on the way to the interpreter that are closed to him.

    In a name space of its own such a directory is replaced by an empty one with nothing but that way in it.
    """
    steps = []
    for path in {Path(sys.executable).resolve(), Path(__file__).resolve(), Path(sys.prefix).resolve()}:
        for parent in reversed(path.parents):
            if not parent.stat().st_mode & 0o001:
                child = parent / path.relative_to(parent).parts[0]
                steps.append(
                    f"mkdir -p {{root}}/way && mount --bind {child} {{root}}/way && "
                    f"mount -t tmpfs -o mode=755 first-day {parent} && mkdir {child} && "
                    f"mount --move {{root}}/way {child}"
                )
    return (
        f"exec unshare -m --propagation private bash -c '{' && '.join([*dict.fromkeys(steps), command])}' bash \"$@\""
    )


ROWS = [
    Row(
        name="HOME unset, XDG_CACHE_HOME set",
        environment={"HOME": None, "XDG_CACHE_HOME": "{root}/x"},
        prepare=toolchain_in("{root}/x/fxpool"),
    ),
    Row(name="HOME empty, XDG_CACHE_HOME set", environment={"HOME": "", "XDG_CACHE_HOME": "{root}/x"}),
    Row(name="HOME missing", environment={"HOME": "{root}/nowhere/home"}, fresh=True),
    Row(name="HOME that can't be made", environment={"HOME": "/proc/nowhere"}, expected=_POOL_ONLY),
    Row(
        name="HOME unwritable",
        shell='chmod 0500 "$HOME" && exec "$@"',
        needs=(no_root,),
        fresh=True,
        expected=_POOL_ONLY,
    ),
    Row(
        name="HOME with a space",
        environment={"HOME": "{root}/a home"},
        prepare=toolchain_in("{root}/a home/.cache/fxpool"),
    ),
    Row(name="HOME non-ASCII", environment={"HOME": "{root}/hömé"}, prepare=toolchain_in("{root}/hömé/.cache/fxpool")),
    Row(name="HOME with a quote and a dollar", environment={"HOME": "{root}/o'h$x"}, fresh=True),
    Row(name="HOME a link", environment={"HOME": "{root}/link"}, prepare=_link("{root}/link", "{root}/behind")),
    # In /tmp the host's server would be shared with other programs: another path is another environment.
    Row(name="TMPDIR missing", environment={"TMPDIR": "{root}/nowhere", "PYTHONPATH": "{root}/own"}),
    Row(name="TMPDIR unset", environment={"TMPDIR": None, "PYTHONPATH": "{root}/own"}),
    Row(name="TMPDIR with a space", environment={"TMPDIR": "{root}/a tmp"}, prepare=_made("{root}/a tmp")),
    Row(name="TMPDIR non-ASCII", environment={"TMPDIR": "{root}/tämp"}, prepare=_made("{root}/tämp")),
    # A socket's path holds 107 bytes: a shorter place is chosen.
    Row(
        name="TMPDIR long",
        environment={"TMPDIR": "{root}/" + "t" * 100},
        prepare=_stood_in_for("{root}/" + "t" * 100 + f"/fxpool-{os.getuid()}"),
    ),
    Row(
        name="XDG directories set",
        environment={
            name: f"{{root}}/{name.lower()}"
            for name in ("XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_RUNTIME_DIR")
        },
        prepare=_made("{root}/xdg_runtime_dir"),
    ),
    Row(name="XDG_CACHE_HOME relative", environment={"XDG_CACHE_HOME": "cache"}),
    Row(name="XDG_RUNTIME_DIR missing", environment={"XDG_RUNTIME_DIR": "{root}/nowhere"}),
    Row(
        name="XDG_RUNTIME_DIR with a space",
        environment={"XDG_RUNTIME_DIR": "{root}/a run"},
        prepare=_made("{root}/a run"),
    ),
    *(Row(name=f"umask {mask}", shell=f'umask {mask}; exec "$@"') for mask in ("000", "002", "077")),
    Row(name="umask 0777", shell='umask 0777; exec "$@"', needs=(root,), expected=_SAID),
    # ---- runtime directory: where no server may be, graphs are compiled in the process, and not kept
    Row(
        name="runtime directory too long",
        environment={"FXPOOL_RUNTIME_DIR": "{root}/" + "r" * 100},
        prepare=_stood_in_for("{root}/" + "r" * 100),
    ),
    Row(name="runtime directory with a space", environment={"FXPOOL_RUNTIME_DIR": "{root}/a run"}),
    Row(name="runtime directory non-ASCII", environment={"FXPOOL_RUNTIME_DIR": "{root}/rün"}),
    Row(
        name="runtime directory a link",
        environment={"FXPOOL_RUNTIME_DIR": _RUNTIME},
        prepare=_link(_RUNTIME, "{root}/behind"),
        expected=_SAID,
    ),
    Row(
        name="runtime directory open to others",
        environment={"FXPOOL_RUNTIME_DIR": _RUNTIME},
        prepare=_made(_RUNTIME, mode=0o777),
        expected=_SAID,
    ),
    Row(
        name="runtime directory somebody else's",
        environment={"FXPOOL_RUNTIME_DIR": _RUNTIME},
        prepare=_made(_RUNTIME, owner=NOBODY),
        needs=(two_users,),
        expected=_SAID,
    ),
    Row(
        name="runtime directory a file",
        environment={"FXPOOL_RUNTIME_DIR": _RUNTIME},
        prepare=lambda site: Path(site.text(_RUNTIME)).write_text(""),
        expected=_SAID,
    ),
    # A leftover in /tmp is in the way of the directory that is chosen there.
    Row(
        name="default runtime directory somebody else's",
        prepare=_made("{tmp}/fxpool-" + str(os.getuid()), owner=NOBODY),
        needs=(two_users,),
        expected=_SAID,
    ),
    # ---- cache directory
    Row(
        name="cache directory with a space",
        environment={"FXPOOL_CACHE_DIR": "{root}/a cache"},
        prepare=toolchain_in("{root}/a cache"),
    ),
    Row(
        name="cache directory open to others",
        environment={"FXPOOL_CACHE_DIR": _CACHE},
        prepare=_made(_CACHE, mode=0o777),
        expected=_POOL_ONLY,
    ),
    Row(
        name="cache directory somebody else's",
        environment={"FXPOOL_CACHE_DIR": _CACHE},
        prepare=_made(_CACHE, owner=NOBODY),
        needs=(two_users,),
        expected=_POOL_ONLY,
    ),
    Row(
        name="cache directory a file",
        environment={"FXPOOL_CACHE_DIR": _CACHE},
        prepare=lambda site: Path(site.text(_CACHE)).write_text(""),
        expected=_POOL_ONLY,
    ),
    Row(
        name="cache directory read-only",
        environment={"FXPOOL_CACHE_DIR": _CACHE},
        shell=_mounted("size=8m", f"mount -o remount,ro {_CACHE}"),
        needs=(mounts,),
        expected=_POOL_ONLY,
    ),
    Row(
        name="cache directory full",
        environment={"FXPOOL_CACHE_DIR": _CACHE},
        shell=_mounted("size=64k", f"(cat /dev/zero > {_CACHE}/filler; true) 2>/dev/null"),
        needs=(mounts,),
        expected=_POOL_ONLY,
    ),
    Row(
        name="cache directory without inodes",
        environment={"FXPOOL_CACHE_DIR": _CACHE},
        shell=_mounted("size=64m,nr_inodes=8"),
        needs=(mounts,),
        expected=_POOL_ONLY,
    ),
    Row(
        name="cache directory noexec",
        environment={"FXPOOL_CACHE_DIR": _CACHE},
        shell=_remounted("noexec"),
        needs=(mounts,),
    ),
    Row(
        name="HOME full",
        shell=_mounted("size=64k", "(cat /dev/zero > $HOME/filler; true) 2>/dev/null").replace(_CACHE, "{home}"),
        needs=(mounts,),
        expected=_POOL_ONLY,
    ),
    Row(
        name="TMPDIR full",
        shell=_mounted("size=64k", "(cat /dev/zero > $TMPDIR/filler; true) 2>/dev/null").replace(_CACHE, "{tmp}"),
        needs=(mounts,),
        expected=_SAID,
    ),
    # ---- other users
    Row(
        name="another user",
        program=_SETUID,
        shell=reachable_for_others('exec "$@"'),
        environment={"WHO": "first"},
        prepare=_for_nobody,
        needs=(two_users, mounts),
        fresh=True,
    ),
    # The home of one, the cache in it, and then root: sudo with HOME kept.
    Row(
        name="another user, then root",
        program=_SETUID,
        shell=reachable_for_others('exec "$@"'),
        environment={"WHO": "first"},
        again_environment={"WHO": ""},
        prepare=_for_nobody,
        needs=(two_users, mounts),
        fresh=True,
        expected=_SAID,
    ),
]
