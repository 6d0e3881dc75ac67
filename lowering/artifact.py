"""What a compile gives, as bytes: published as an entry of a store, or carried inline.

The parts are the pickled result of torch, the kernel libraries, the guards and the effects. An
entry keeps the first two as blobs; an inline artifact is one message. `Artifact` is what loading
works from, wherever the parts lie.
"""

from __future__ import annotations

import contextlib
import hashlib
import tempfile
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from fxpool.codecache.blobs import BlobRef
from fxpool.codecache.entry import Entry, Metadata
from fxpool.codecache.key import GraphKey
from fxpool.codecache.store import LocalStore
from fxpool.errors import CorruptEntryError
from fxpool.lowering.kernels import Bundle, LibraryFile

RESULT = "result"


class Artifact(msgspec.Struct):
    """A compiled graph in parts. `seconds` is what compiling took, `unkept` why it is in no store."""

    level: str
    result: bytes
    libraries: list[bytes]
    index: dict[str, tuple[int, str]]
    guards: list[Any]
    effects: dict[str, Any]
    seconds: float = 0.0
    unkept: str = ""


class Reference(msgspec.Struct):
    """An artifact that was published: the key it is under, and the entry's name there."""

    key: str
    name: str
    seconds: float = 0.0


class Answer(msgspec.Struct):
    """What a worker sends back: one of the two."""

    artifact: Artifact | None = None
    reference: Reference | None = None


def encode_answer(answer: Answer) -> bytes:
    return msgspec.msgpack.encode(answer)


def decode_answer(data: bytes) -> Answer:
    return msgspec.msgpack.decode(data, type=Answer)


def publish(artifact: Artifact, key: GraphKey, store: LocalStore, *, label: str, created: float, torch: str) -> Entry:
    """Write an artifact into a store. Raises StoreError."""
    blobs = {RESULT: artifact.result}
    blobs.update({_library(number): library for number, library in enumerate(artifact.libraries)})
    entry = Entry(
        key=key.digest,
        components=list(key.components),
        guards=artifact.guards,
        effects={"level": artifact.level, "index": artifact.index, **artifact.effects},
        metadata=Metadata(label=label, created=created, compile_seconds=artifact.seconds, torch_version=torch),
    )
    return store.publish(entry, blobs)


def _library(number: int) -> str:
    return f"kernels-{number}"


class Parts:
    """Where loading takes the parts of a compiled graph from."""

    def __init__(
        self, result: Callable[[], bytes], bundle: Bundle, guards: list[Any], effects: dict[str, Any], seconds: float
    ) -> None:
        self.result, self.bundle, self.guards, self.effects, self.seconds = result, bundle, guards, effects, seconds


def parts_of_entry(entry: Entry, store: LocalStore) -> Parts:
    """Parts of a stored entry. Reading one that is gone or damaged raises CorruptEntryError."""
    effects = dict(entry.effects)
    index = effects.pop("index")
    effects.pop("level", None)
    libraries = [entry.blobs[_library(n)] for n in range(sum(role.startswith("kernels-") for role in entry.blobs))]

    def result() -> bytes:
        found = store.read_blob(entry.blobs[RESULT])
        if found is None:
            raise CorruptEntryError(f"the result of entry {entry.key[:12]} is gone or damaged")
        return found

    def file(ref: BlobRef) -> LibraryFile:
        def find() -> contextlib.AbstractContextManager[str]:
            found = store.blob_path(ref)
            if found is None:
                raise CorruptEntryError(f"a kernel library of entry {entry.key[:12]} is gone or damaged")
            return contextlib.nullcontext(found)

        return find

    bundle = Bundle(index, [file(ref) for ref in libraries], [ref.digest for ref in libraries])
    return Parts(result, bundle, entry.guards, effects, entry.metadata.compile_seconds)


def parts_of_artifact(artifact: Artifact) -> Parts:
    """Parts of an inline artifact; its libraries pass through a file that is gone once they are loaded."""

    def file(library: bytes) -> LibraryFile:
        @contextlib.contextmanager
        def write() -> Iterator[str]:
            with tempfile.NamedTemporaryFile(prefix="fxpool-kernels-", suffix=".so") as written:
                written.write(library)
                written.flush()
                yield written.name

        return write

    digests = [hashlib.sha256(library).hexdigest() for library in artifact.libraries]
    bundle = Bundle(dict(artifact.index), [file(library) for library in artifact.libraries], digests)
    return Parts(lambda: artifact.result, bundle, artifact.guards, artifact.effects, artifact.seconds)
