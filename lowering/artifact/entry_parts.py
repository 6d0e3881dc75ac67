"""The parts of a compiled graph: published as an entry of a store, or carried inline.

The parts are torch's pickled result, the libraries of C++ and Triton kernels, the guards and the effects. An entry
stores the result and the libraries as blobs; an inline artifact is a single message. `Artifact` presents both forms to
the loader.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from fxpool import counters, notices
from fxpool.codecache.store.blobs import BlobRef
from fxpool.codecache.store.entry import Entry
from fxpool.codecache.store.store import LocalStore
from fxpool.errors import CorruptEntryError, StoreError
from fxpool.lowering.artifact.entry_content import Choices, Decisions, Effects, content_of
from fxpool.lowering.cpp.library import Library, LibraryFile
from fxpool.lowering.request.compile_request import AOT, FX
from fxpool.torch_compat.cuda.padding import PaddingQuestion
from fxpool.torch_compat.dynamo.compile_times import CompileTimes

if TYPE_CHECKING:
    from fxpool.lowering.cpp.built_libraries import BuiltLibraries
    from fxpool.lowering.cuda.triton_library import TritonLibrary

log = notices.logger(__name__)
RESULT = "result"
LIBRARY = "kernels"
TRITON = "triton"
#: The `CompileRequest`, if the setting `keep_requests` is on; not used for loading.
REQUEST = "request"
#: The graph as Dynamo made it (`eager_graph`), of code that writes to its inputs.
GRAPH = "graph"
#: Prefix, followed by a number from 0.
BUILT = "built."
#: `Artifact.unkept` where C++ was compiled by another compiler than the key says
COMPILER_CHANGED = "the C++ compiler changed during the compile"
#: `Artifact.unkept` where C++ includes headers that no key covers
HEADERS_UNLISTED = "generated code includes a header of the program's"


class Artifact(msgspec.Struct, kw_only=True):
    """A compiled graph in parts.

    `seconds` is the compile time; `phases` are its parts: ``lowering``, then waiting for ``kernels``. `unkept` is the
    reason for not storing an artifact that has a key. `unprepared`: its kernels were compiled without the precompiled
    header that the host should have. `guessed`: templates were chosen without a device to time them on. `times` is
    torch's record of the compile. `compiled_cpp`: the result itself contains C++. `graphs` are the digests of the
    graphs that AOTAutograd made (`worker.reused_graphs`); `reused`: their code is that of another entry.
    """

    level: str
    result: bytes
    library: bytes | None = None
    triton: bytes | None = None
    built: list[bytes] = []
    guards: list[Any] = []
    effects: Effects = Effects()
    decisions: Decisions = Decisions()
    seconds: float = 0.0
    unkept: str = ""
    unprepared: bool = False
    phases: dict[str, float] = {}
    guessed: bool = False
    times: CompileTimes = msgspec.field(default_factory=CompileTimes)
    compiled_cpp: bool = False
    graphs: list[str] = []
    reused: bool = False

    def has_cpp(self) -> bool:
        """Return whether any part was made by a C++ compiler."""
        return self.compiled_cpp or self.library is not None or bool(self.built)


class Reference(msgspec.Struct, kw_only=True):
    """A published artifact: the store, the key, and the entry's name.

    `existing`: the worker met the entry in the store, and compiled nothing. `full`: the store is over its limits.
    """

    store: str
    key: str
    name: str
    seconds: float = 0.0
    unprepared: bool = False
    existing: bool = False
    full: bool = False
    phases: dict[str, float] = {}
    guessed: bool = False
    times: CompileTimes = msgspec.field(default_factory=CompileTimes)


class CompileReply(msgspec.Struct, kw_only=True):
    """The result of a compile job: exactly one of these fields is set.

    `questions` need answers before the graph can be compiled. `unanswered` is a query for a device that only a worker
    that sees the device can answer.
    """

    artifact: Artifact | None = None
    reference: Reference | None = None
    questions: list[PaddingQuestion] = []
    unanswered: str = ""


def encode_reply(reply: CompileReply) -> bytes:
    """Encode a reply."""
    return msgspec.msgpack.encode(reply)


def decode_reply(data: bytes) -> CompileReply:
    """Decode a reply of `encode_reply`. Raises msgspec.DecodeError for other bytes."""
    return msgspec.msgpack.decode(data, type=CompileReply)


class Parts:
    """The parts of a compiled graph for the loader, independent of where they are stored.

    `library` is None for a graph without C++ kernels, `triton` for a graph without linked Triton kernels; `built` are
    digests and files of libraries built from one source each. The loading code sets `indices`, the CUDA devices that
    the graph runs on, and `groups`, the names of its process groups. `entry` is the key and name of the entry, if the
    parts are stored, and `graph` reads the graph as Dynamo made it, if the entry has it.
    """

    def __init__(
        self,
        result: Callable[[], bytes],
        library: Library | None,
        triton: Callable[[], TritonLibrary] | None,
        guards: Sequence[Any],
        effects: Effects,
        seconds: float,
        built: Sequence[tuple[str, LibraryFile]] = (),
        inline: Callable[[], Artifact] | None = None,
        entry: tuple[str, str] | None = None,
    ) -> None:
        self._inline = inline
        self.entry = entry
        self.graph: Callable[[], bytes] | None = None
        self._built = list(built)
        self.result, self._library, self._triton = result, library, triton
        self.guards, self.effects, self.seconds = guards, effects, seconds
        self._loaded_triton: TritonLibrary | None = None
        self.indices: Sequence[int] = ()
        self.groups: Sequence[str] = ()

    def library(self) -> Any:
        """Return the loaded library. Raises CorruptEntryError if there is no library; else as `Library.load`."""
        if self._library is None:
            raise CorruptEntryError("the entry lacks the kernel library that its wrapper needs")
        return self._library.load()

    def built(self) -> BuiltLibraries:
        """Return the libraries built from one source each, loaded on first access, with `Library.load`'s errors."""
        from fxpool.lowering.cpp.built_libraries import BuiltLibraries  # few graphs have any

        return BuiltLibraries(self._built)

    def triton(self) -> TritonLibrary:
        """Return the library of Triton kernels, shared by all graphs of the entry. Raises CorruptEntryError."""
        if self._loaded_triton is None:
            if self._triton is None:
                raise CorruptEntryError("the entry lacks the Triton kernels that its wrapper needs")
            self._loaded_triton = self._triton()
        return self._loaded_triton

    def inline(self) -> Artifact:
        """Return all parts as one message. Raises CorruptEntryError: a part is gone or damaged."""
        if self._inline is None:
            raise CorruptEntryError("the graph was changed after it was read, and the entry has no other copy")
        return self._inline()

    def missed(self, part: str) -> None:
        """Count a part of the graph that was not linked: torch loads or compiles it."""
        counters.count("fallbacks", f"loader:{part}")


#: Makes a callable from parts, for the current call.
Load = Callable[[Parts], Any]


def parts_of_entry(entry: Entry, store: LocalStore) -> Parts:
    """Return the parts of a stored entry. Reading a part that is gone or damaged raises CorruptEntryError."""
    content = content_of(entry)

    def read(name: str) -> bytes:
        data = store.read_blob(entry.blobs[name])
        if data is None:
            raise CorruptEntryError(f"part {name} of entry {entry.key[:12]} is missing or damaged")
        return data

    def result() -> bytes:
        return read(RESULT)

    def inline() -> Artifact:
        return Artifact(
            level=content.level,
            result=result(),
            library=read(LIBRARY) if LIBRARY in entry.blobs else None,
            triton=read(TRITON) if TRITON in entry.blobs else None,
            built=[read(f"{BUILT}{number}") for number in range(len(built))],
            guards=entry.guards,
            effects=content.effects,
            seconds=entry.metadata.compile_seconds,
        )

    @contextlib.contextmanager
    def opened(blob: BlobRef) -> Iterator[int]:
        descriptor = store.open_blob(blob)
        if descriptor is None:
            raise CorruptEntryError(f"a library of entry {entry.key[:12]} is missing or damaged")
        try:
            yield descriptor
        finally:
            os.close(descriptor)

    def file(blob: BlobRef) -> LibraryFile:
        return lambda: opened(blob)

    def triton() -> TritonLibrary:
        return _triton_library(read(TRITON), content.choices, lambda made: _keep_choices(entry, store, made))

    library = Library(entry.blobs[LIBRARY].digest, file(entry.blobs[LIBRARY])) if LIBRARY in entry.blobs else None
    built: list[BlobRef] = []
    while (blob := entry.blobs.get(f"{BUILT}{len(built)}")) is not None:
        built.append(blob)
    parts = Parts(
        result,
        library,
        triton if TRITON in entry.blobs else None,
        entry.guards,
        content.effects,
        entry.metadata.compile_seconds,
        [(blob.digest, file(blob)) for blob in built],
        inline,
        (entry.key, entry.name),
    )
    if GRAPH in entry.blobs:
        parts.graph = functools.partial(read, GRAPH)
    return parts


def _triton_library(data: bytes, choices: Choices, keep: Callable[[Choices], None]) -> TritonLibrary:
    from fxpool.lowering.cuda import triton_kernels, triton_library  # not needed for a graph without such kernels

    try:
        return triton_library.TritonLibrary(triton_kernels.decode(data), choices, keep)
    except (msgspec.DecodeError, SyntaxError) as error:
        raise CorruptEntryError(f"the Triton kernels cannot be decoded: {error}") from error


def _keep_choices(entry: Entry, store: LocalStore, choices: Choices) -> None:
    """Store the choice of candidates in an entry, so that the next process does not measure them."""
    try:
        content = msgspec.structs.replace(content_of(entry), choices=choices)
        store.publish(msgspec.structs.replace(entry, content=content), {})
    except StoreError as error:
        counters.count("bypasses", "choices_not_kept")
        log.info("could not store the choice of Triton kernels: %s", error)


def generated_code(entry: Entry, store: LocalStore) -> list[tuple[str, str]]:
    """Return (name in tracebacks, text) of each module that Inductor generated for an entry: wrapper and kernels.

    Raises:
        CorruptEntryError: the entry is damaged, or this process cannot read the entry of another torch.
    """
    from fxpool.torch_compat.inductor import (  # late: `cache show` has not imported torch before
        aot,
        aot_graph,
        output_code,
    )

    data = parts_of_entry(entry, store).result() if RESULT in entry.blobs else b""
    if not data or content_of(entry).level not in (AOT, FX):  # a restart, or an entry without a graph
        return []
    try:
        graphs = aot.graphs_of(aot.load_result(data)) if content_of(entry).level == AOT else [aot_graph.load(data)]
    except (ImportError, AttributeError, EOFError, TypeError) as error:
        raise CorruptEntryError(f"this torch cannot read entry {entry.key[:12]}: {error}") from error
    return [(output_code.name_of(graph), graph.source_code) for graph in graphs]


def parts_of_artifact(artifact: Artifact) -> Parts:
    """Return the parts of an inline artifact; its library is written to an unnamed file to be loaded."""
    data = artifact.library

    @contextlib.contextmanager
    def written(library: bytes) -> Iterator[int]:
        with tempfile.TemporaryFile() as file:
            file.write(library)
            file.flush()
            yield file.fileno()

    def of(library: bytes) -> tuple[str, LibraryFile]:
        return hashlib.sha256(library).hexdigest(), lambda: written(library)

    library = Library(*of(data)) if data is not None else None
    kernels = artifact.triton
    return Parts(
        lambda: artifact.result,
        library,
        (lambda: _triton_library(kernels, {}, lambda made: None)) if kernels is not None else None,
        artifact.guards,
        artifact.effects,
        artifact.seconds,
        [of(one) for one in artifact.built],
        lambda: artifact,
    )
