"""A machine of a farm without fxpool's server: a job is a text that says what to do."""

from __future__ import annotations

import os
import threading
import time

from fxpool.pool.wire.farm import Machine

__all__ = ["FakeMachine"]


class FakeMachine:
    """Has the methods of `fxpool.farm.machine.LocalMachine`.

    An order is ``key command argument``; each call appends a line to the file $FARM_LOG.
    """

    def __init__(self, slots: int) -> None:
        if "FARM_FAILS" in os.environ:
            raise ValueError("no key")
        self._slots = slots
        self._cancelled: dict[str, threading.Event] = {}
        self._note("made", "")

    def announced(self, address: str = "") -> Machine:
        return Machine(name=f"pid:{os.getpid()}", address=address, slots=self._slots, jobs=0, builds={"torch": "1"})

    def run(self, order: bytes) -> bytes:
        key, command, argument = order.split(b" ", 2)
        cancelled = self._cancelled[key.decode()] = threading.Event()
        self._note("started", key.decode())
        if command == b"sleep":
            cancelled.wait(float(argument))
        elif command == b"until":
            while not os.path.exists(argument) and not cancelled.wait(0.02):
                pass
        return order if command == b"echo" else str(os.getpid()).encode()

    def cancel(self, key: str) -> None:
        self._note("cancelled", key)
        if key in self._cancelled:
            self._cancelled[key].set()

    def close(self) -> None:
        self._note("closed", "")

    def _note(self, verb: str, key: str) -> None:
        with open(os.environ["FARM_LOG"], "a") as file:
            file.write(f"{verb} {key} {os.getpid()} {time.monotonic()}\n")
