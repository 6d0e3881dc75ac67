"""The farm of this process's settings: which jobs may run there, and what comes back.

A request goes to a farm only if it has a key, belongs to a shared store, and needs no device of this host: templates
are timed where the device is. Its result is authenticated before anything of it is decoded.
"""

from __future__ import annotations

import hashlib
import os
from typing import TYPE_CHECKING

from fxpool import config, counters, notices, remedies
from fxpool.codecache.key import build_digests
from fxpool.codecache.store.store import FRESH
from fxpool.errors import ConfigurationError
from fxpool.lowering.core.farm_orders import AWAY_JOB, request_name, result_name
from fxpool.lowering.core.runtime import Part, runtime
from fxpool.lowering.request import environment_variables
from fxpool.lowering.request.compile_request import AOT, FX, CompileRequest
from fxpool.pool.wire.farm import Away

if TYPE_CHECKING:
    from fxpool.codecache.bundle.authentication import Keyring

__all__ = ["away", "may_take", "opened", "report_stayed"]

# Bytes of a result.
_MOST = 1 << 30
# Reasons that its user can do something about, or should know of.
_WORTH_SAYING = ("gone", "late", "lost", "no_machine", "other_builds")


class _Keys(Part):
    """The keyring of the setting `remote_key_file`, read once."""

    def __init__(self) -> None:
        self._path: str | None = None
        self._keyring: Keyring | None = None

    def keyring(self, settings: config.Settings) -> Keyring | None:
        """Return the keyring; None, with a warning, if a farm cannot be trusted without one."""
        path = settings.remote_key_file
        name = os.fspath(path) if path is not None else ""
        if self._path != name:
            self._path, self._keyring = name, None
            try:
                self._keyring = _load(name)
            except ConfigurationError as error:
                notices.switched_off("farm_refused", f"compiling without the farm: {error}", about=name)
        return self._keyring


def _load(path: str) -> Keyring:
    from fxpool.codecache.bundle.authentication import Keyring  # only with a farm

    if not path:
        raise ConfigurationError(
            "its results cannot be trusted without a key",
            remedy=remedies.CREATE_KEY,
        )
    return Keyring.load(path)


def may_take(request: CompileRequest, settings: config.Settings) -> bool:
    """Return whether a farm may compile a request instead of this host."""
    shared = request.store is not None and os.path.basename(request.store) != FRESH
    if settings.farm is None or request.key is None or not shared or request.level not in (AOT, FX):
        return False
    if request.debug_files is not None or request.visible is not None or request.times_templates:
        return False
    return runtime.part(_Keys).keyring(settings) is not None


def away(request: CompileRequest, flight: str, payload: bytes, settings: config.Settings) -> Away:
    """Return how a farm may run the job of a request that it may take, with its dump as `payload`.

    Jobs with the same `flight` have the same result.
    """
    keyring = runtime.part(_Keys).keyring(settings)
    assert settings.farm is not None and keyring is not None
    key = hashlib.sha256(flight.encode()).hexdigest()
    sealed = keyring.seal(request_name(key), payload)
    return Away(
        farm=settings.farm,
        key=key,
        function=AWAY_JOB,
        seal=sealed[: len(sealed) - len(payload)],
        environment={
            name: value for name, value in request.ambient.environment.items() if environment_variables.in_key(name)
        },
        builds=dict(request.builds or build_digests.digests(request.toolchain_dir, cpp=not request.devices)),
        wait=settings.farm_wait,
    )


def report_stayed(reason: str, why: str, settings: config.Settings) -> None:
    """Count a graph that stayed at home, and say so once for each reason."""
    counters.count("farm", f"home:{reason}")
    if reason in _WORTH_SAYING:
        notices.once(f"farm:{reason}", f"compiling on this host instead of the farm {settings.farm} ({reason}): {why}")


def opened(key: str, result: bytes, settings: config.Settings) -> bytes:
    """Return the encoded `CompileReply` in a farm's result. Raises NotAuthenticError, CorruptEntryError."""
    from fxpool.codecache.remote import remote_values  # only with a farm

    keyring = runtime.part(_Keys).keyring(settings)
    assert keyring is not None
    return remote_values.unpack(keyring, result_name(key), result, _MOST)
