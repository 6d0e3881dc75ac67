"""The protocols that a cluster engine implements for a farm: run a job, withdraw it, and list the machines.

An engine is a module with two classes. One connects to the engine's scheduler, in the bridge of each host:

    connect   raises EngineError if the scheduler does not answer
    machines  the machines that have announced themselves, of which none has been silent for `SILENCE` seconds
    run       one job; cancelling the coroutine withdraws it
    close

The other makes a machine of the farm out of this one (``fxpool farm worker``): it announces the result of
`LocalMachine.announced`, and answers jobs with `LocalMachine.run`. Jobs with the same key are one task of the engine.
Any machine needs a key file and a cache directory. Imports no torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import msgspec

from fxpool import config, remedies
from fxpool.errors import ConfigurationError
from fxpool.pool.wire.farm import Machine

__all__ = [
    "CONNECT", "PERIOD", "SILENCE", "Answer", "Engine", "EngineError", "UnreachableError", "Worker", "check_cache",
    "key_file",
]  # fmt: skip

#: Seconds between two lists of machines, and until a scheduler or a machine that says nothing counts as gone.
PERIOD, SILENCE = 1.0, 4.0
#: Seconds for the first answer of a scheduler.
CONNECT = 10.0


class EngineError(Exception):
    """The engine cannot run the job, or cannot be reached; the message is for people."""


class UnreachableError(EngineError):
    """No scheduler answers, which may be starting."""


class Answer(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A machine's answer to a job, packed with MessagePack: its result, or the reason (`error`) for having none."""

    machine: str
    seconds: float = 0.0
    error: str = ""
    payload: bytes = b""


class Engine(Protocol):
    """A connection to a farm's scheduler, on one event loop. Every method may raise EngineError."""

    def __init__(self, address: str) -> None: ...

    async def connect(self) -> None:
        """Connect within `CONNECT` seconds."""

    async def machines(self) -> list[Machine]:
        """Return the farm's machines. Raises EngineError if the scheduler does not answer within `SILENCE` seconds."""

    async def run(self, key: str, order: bytes, machines: Sequence[str], priority: int) -> bytes:
        """Run a job on one of `machines` and return its packed `Answer`.

        A job whose machine is lost runs again on another one. Raises EngineError once none of them is left.
        """

    async def close(self) -> None:
        """Disconnect. Never raises."""


class Worker(Protocol):
    """This machine as a part of a farm."""

    def __init__(self, address: str, slots: int) -> None: ...

    def serve(self) -> None:
        """Announce this machine and run jobs, until SIGTERM or SIGINT. Waits for a scheduler that does not answer.

        Raises EngineError: this machine cannot be a part of the farm.
        """


def key_file() -> Path:
    """Return the key file. Raises ConfigurationError if it is not set, or unusable."""
    from fxpool.codecache.bundle.authentication import Keyring  # a bridge needs none of this

    path = config.current().remote_key_file
    if path is None:
        raise ConfigurationError(
            "a farm needs a key file, which authenticates requests and results",
            remedy=remedies.CREATE_KEY,
        )
    Keyring.load(path)
    return path


def check_cache() -> None:
    """Raise StoreError if the cache directory may not be used."""
    from fxpool.codecache.store import blobs  # a bridge needs none of this

    blobs.check_directory(str(config.current().cache_dir))
