"""Connects a client to a server: starts a private server, or finds or starts the host's server.

    <root>/pool-XXXXXXXX/              a server's private directory: socket, lock, logs
    <root>/host-<digest>.socket        a link to the socket of the host's server for one environment
    <root>/host.lock                   held by the process that starts such a server

Clients find the host's server by its link only. If its socket refuses connections, or the server is silent for
`PoolConfig.patience` seconds, it is replaced: the client starts another server and points the link at that. The old
server notices and leaves, or is killed (see `stale_server`).
"""

from __future__ import annotations

import fcntl
import os
import secrets
import select
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec

from fxpool import forks, interruptions
from fxpool.errors import PoolUnavailableError, ProtocolError
from fxpool.pool.client import hosts
from fxpool.pool.host import fork_inheritance, processes, runtime_dir
from fxpool.pool.wire.config import PoolConfig, ServerConfig

__all__ = ["Server", "find_or_start", "start"]

_ATTEMPTS = 5


@dataclass
class Server:
    """A server, and a connection to it on which Hello has been sent.

    `process` is a child of this process: a private server, or the process that forks the host's server (`shared`) and
    ends. None if the server was already running.
    """

    sock: socket.socket
    directory: Path
    process: subprocess.Popen[bytes] | None
    shared: bool


def start(config: PoolConfig) -> Server:
    """Start a private server. Raises OSError and PoolUnavailableError."""
    return _start(config, runtime_dir.runtime_root(config.runtime_dir))


def find_or_start(config: PoolConfig) -> Server:
    """Return a connection to this host's server for `config.host`, starting one if none answers.

    Raises OSError and PoolUnavailableError.
    """
    root = runtime_dir.runtime_root(config.runtime_dir)
    link = runtime_dir.link_of(root, config.host)
    for _ in range(_ATTEMPTS):
        server = _find(link, config)
        if server is not None:
            return server
        with _start_lock(root, config):
            # Another process may have started a server during the wait for the lock.
            server = _find(link, config)
            if server is not None:
                return server
            before = hosts.directory_of(link)
            started = _start(config, root, before)
            _point(link, started.directory)
            if before is not None:
                _remove_if_dead(before)
            return started
    raise PoolUnavailableError("each server found on this host ended before it could be used")


def _find(link: Path, config: PoolConfig) -> Server | None:
    """Return the host's server if it answers; None if it does not exist, hangs, or is leaving."""
    directory = hosts.directory_of(link)
    if directory is None:
        return None
    server: Server | None = None
    sock: socket.socket | None = None
    try:
        sock = hosts.connect(directory, config.patience)
        # A server that is still starting may be slow.
        patience = config.patience if (directory / runtime_dir.READY).exists() else config.start_timeout
        with interruptions.let_through():
            answered = select.select([sock], [], [], patience)[0]
        if answered and sock.recv(1, socket.MSG_PEEK):
            sock.setblocking(False)
            server = Server(sock, directory, None, True)
    except (OSError, ProtocolError) as error:
        interruptions.pass_on(error)
    finally:
        if server is None and sock is not None:
            hosts.disconnect(sock)
    return server


def _remove_if_dead(directory: Path) -> None:
    """Remove a killed server's directory. A hung server still holds its lock, and its directory is left alone."""
    try:
        lock = runtime_dir.hold(directory)
    except OSError:
        return
    try:
        runtime_dir.remove(directory)
    finally:
        os.close(lock)


@contextmanager
def _start_lock(root: Path, config: PoolConfig) -> Iterator[None]:
    """Hold the lock with which a process starts the host's server."""
    path = root / runtime_dir.HOST_LOCK
    deadline = time.monotonic() + config.start_timeout
    with forks.held_off():
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        fork_inheritance.descriptors.add(descriptor)
    try:
        while not _locked(descriptor):
            if time.monotonic() > deadline:
                raise PoolUnavailableError(
                    f"another process has been starting this host's server for {config.start_timeout:g} s",
                    remedy=f"find the process that holds {path} (`fuser {path}`)",
                )
            with interruptions.let_through():
                time.sleep(0.01)
        yield
    finally:
        with forks.held_off():
            fork_inheritance.descriptors.discard(descriptor)
            os.close(descriptor)


def _locked(descriptor: int) -> bool:
    """Try to lock a file; return whether this process holds the lock now."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _point(link: Path, directory: Path) -> None:
    """Point `link` at a server's socket, atomically."""
    fresh = link.with_name(f".{link.name}-{secrets.token_hex(4)}")
    os.symlink(f"{directory.name}/{runtime_dir.SOCKET}", fresh)
    os.replace(fresh, link)


def _start(config: PoolConfig, root: Path, before: Path | None = None) -> Server:
    directory = runtime_dir.make_private(root)
    try:
        with forks.held_off():
            return _spawn(config, directory, before)
    except BaseException:
        runtime_dir.remove(directory)
        raise


def _spawn(config: PoolConfig, directory: Path, before: Path | None) -> Server:
    settings = msgspec.structs.asdict(config) | {"environment": {}, "runtime_dir": str(directory.parent)}
    predecessor = str(before) if before is not None else ""
    server = ServerConfig(**settings, predecessor=predecessor, client=os.getpid())
    runtime_dir.write_config(directory, msgspec.json.encode(server))
    path = str(directory / runtime_dir.SOCKET)
    # Listen and connect before starting the server: then this process need not poll for the server, and if it dies from
    # now on, the server sees a closed connection.
    listener = fork_inheritance.unix_socket()
    fork_inheritance.sockets.add(listener)
    sock: socket.socket | None = None
    try:
        listener.bind(path)
        os.chmod(path, 0o600)
        listener.listen(64)
        sock = hosts.connect(directory, None)
        sock.setblocking(False)
        arguments = ["--directory", str(directory), "--listen", str(listener.fileno())]
        environment = dict(config.environment)
        if config.host:
            environment.pop(processes.MARK, None)  # the host's server outlives the process that starts it
        with open(directory / runtime_dir.LOG, "ab") as output:  # it is shortened while it is open
            process = subprocess.Popen(
                [processes.interpreter(), "-m", "fxpool.pool.server.server", *arguments],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                # A file in the user's working directory must not shadow a module.
                cwd=directory,
                env=environment,
                pass_fds=(listener.fileno(),),
                start_new_session=True,  # Ctrl-C in a terminal must reach only the client
            )
        fork_inheritance.processes.add(process)
    except BaseException:
        if sock is not None:
            hosts.disconnect(sock)
        raise
    finally:
        fork_inheritance.sockets.discard(listener)
        listener.close()  # an open copy would hide the end of a server that never accepted
    return Server(sock, directory, process, bool(config.host))
