"""The job of a farm's machine: compile a request of another host with this machine's store, and return all of it.

Both directions are authenticated with the key of the remote cache. The request is compiled only if this machine's
builds are the host's at that moment (`jobs.compile_loaded`): a package or a compiler may have changed since the machine
announced itself.
"""

from __future__ import annotations

import dataclasses

import msgspec

from fxpool.codecache.bundle.authentication import Keyring
from fxpool.codecache.remote import remote_values
from fxpool.codecache.store.store import LocalStore
from fxpool.errors import CorruptEntryError
from fxpool.lowering.artifact import lookup
from fxpool.lowering.artifact.entry_content import content_of
from fxpool.lowering.artifact.entry_parts import Artifact, CompileReply, Reference, encode_reply, parts_of_entry
from fxpool.lowering.core.farm_orders import FarmOrder, request_name, result_name
from fxpool.lowering.request.compile_request import CompileRequest
from fxpool.lowering.worker import jobs

__all__ = ["away_job", "prepare_for_others_job"]


def away_job(payload: bytes) -> bytes:
    """Job: compile the request of a `FarmOrder`; return the sealed `CompileReply`, which has all parts inline.

    Raises:
        NotAuthenticError: the request does not come from a host with the key.
        CannotTravelError: this machine has other code than the program.
        CompileError: this machine has other builds than the host, or the result depends on them.
        Exception: any error of the compile.
    """
    order = msgspec.msgpack.decode(payload, type=FarmOrder)
    keyring = Keyring.load(order.key_file)
    reply = jobs.compile_loaded(_request(order, keyring))
    if reply.reference is not None:
        reply = CompileReply(artifact=_inline(reply.reference))
    return remote_values.pack(keyring, result_name(order.key), encode_reply(reply))


def prepare_for_others_job(payload: bytes) -> bytes:
    """Job: prepare this machine for the C++ of requests like that of a `FarmOrder`; see `jobs.prepare_job`."""
    order = msgspec.msgpack.decode(payload, type=FarmOrder)
    jobs.prepare(_request(order, Keyring.load(order.key_file)))
    return b""


def _request(order: FarmOrder, keyring: Keyring) -> CompileRequest:
    """Return the request of an order, for this machine. Raises NotAuthenticError before anything of it is decoded."""
    data = keyring.open(request_name(order.key), order.seal + order.request)
    request = CompileRequest.load(data)
    return dataclasses.replace(
        request,
        ambient=request.ambient.on_this_machine(),
        store=order.store,
        toolchain_dir=order.toolchain_dir,
        bounds=None,
        rejected_entries=(),
        logs=None,
        keep_request=False,
        builds=order.builds,
    )


def _inline(reference: Reference) -> Artifact:
    store = LocalStore(reference.store)
    entry = lookup.published(reference, store)
    if entry is None:
        raise CorruptEntryError(f"the entry {reference.key[:12]} is gone")
    content = content_of(entry)
    artifact = parts_of_entry(entry, store).inline()
    artifact.decisions, artifact.graphs = content.decisions, content.graphs
    artifact.phases, artifact.times, artifact.guessed = reference.phases, reference.times, reference.guessed
    return artifact
