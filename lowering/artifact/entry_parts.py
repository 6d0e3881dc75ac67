"""The parts of a compiled graph: published as an entry of a store, or carried inline.

The parts are torch's pickled result, the libraries of C++ and Triton kernels, the guards and the effects. An entry
stores the result and the libraries as blobs; an inline artifact is a single message. `Artifact` presents both forms to
the loader.
"""

from __future__ import annotations

import contextlib
import hashlib
import tempfile
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from fxpool import counters, notices
from fxpool.codecache.store.blobs import BlobRef
from fxpool.codecache.store.entry import Entry
from fxpool.codecache.store.store import LocalStore
from fxpool.errors import CorruptEntryError, StoreError
from fxpool.lowering.artifact.content import Choices, Decisions, Effects, content_of
from fxpool.lowering.cpp.built import BuiltLibraries
from fxpool.lowering.cpp.library import Library, LibraryFile
from fxpool.lowering.request.compile_request import AOT, FX
from fxpool.torch_compat.cuda.padding import PaddingQuestion
from fxpool.torch_compat.dynamo.compile_times import CompileTimes

if TYPE_CHECKING:
    from fxpool.lowering.cuda.triton_library import TritonLibrary

log = notices.logger(__name__)
RESULT = "result"
LIBRARY = "kernels"
TRITON = "triton"
#: The `CompileRequest`, where the setting `keep_requests` asks for it; nothing is loaded from it.
REQUEST = "request"
#: With a number behind it, from 0.
BUILT = "built."
#: `Artifact.unkept` where C++ was compiled by another compiler than the key says
COMPILER_CHANGED = "the C++ compiler was changed meanwhile"


class Artifact(msgspec.Struct, kw_only=True):
    """A compiled graph in parts.

    `seconds` is what compiling took, `phases` how much of that was ``lowering`` and then waiting for ``kernels``;
    `unkept` is why it is in no store though it might be, `unprepared` that its kernels were compiled without the
    precompiled header that the host should have, `guessed` that templates were chosen without a device to time them,
    `times` what torch has recorded of the compile; `compiled_cpp` that there is C++ in the result itself.
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

    def has_cpp(self) -> bool:
        """Whether a C++ compiler made a part of it."""
        return self.compiled_cpp or self.library is not None or bool(self.built)


class Reference(msgspec.Struct, kw_only=True):
    """An artifact that was published: in which store, the key it is under, and the entry's name there.

    `found` says that it was there when the worker looked, so that nothing was compiled.
    """

    store: str
    key: str
    name: str
    seconds: float = 0.0
    unprepared: bool = False
    found: bool = False
    phases: dict[str, float] = {}
    guessed: bool = False
    times: CompileTimes = msgspec.field(default_factory=CompileTimes)


class CompileReply(msgspec.Struct, kw_only=True):
    """The result of a compile job: one of these fields is set.

    `questions` are to be answered before the graph can be compiled; `unanswered` is what a device was asked for that
    only a worker which sees it can find out.
    """

    artifact: Artifact | None = None
    reference: Reference | None = None
    questions: list[PaddingQuestion] = []
    unanswered: str = ""


def encode_reply(reply: CompileReply) -> bytes:
    """A reply as bytes."""
    return msgspec.msgpack.encode(reply)


def decode_reply(data: bytes) -> CompileReply:
    """The reply of `encode_reply`. Raises msgspec.DecodeError for other bytes."""
    return msgspec.msgpack.decode(data, type=CompileReply)


class Parts:
    """The parts of a compiled graph, wherever they lie: loading takes them from here.

    `library` is None for a graph without C++ kernels, `triton` for one without Triton kernels that are linked;
    `built` are digests and files of libraries that were built of one source each. Who loads says in
    `indices` which CUDA devices the graph is to run on, and in `groups` what its process groups are called.
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
    ) -> None:
        self._inline = inline
        self._built = BuiltLibraries(list(built))
        self.result, self._library, self._triton = result, library, triton
        self.guards, self.effects, self.seconds = guards, effects, seconds
        self._loaded_triton: TritonLibrary | None = None
        self.indices: Sequence[int] = ()
        self.groups: Sequence[str] = ()

    def library(self) -> Any:
        """The loaded library. Raises CorruptEntryError if there is none; else as `Library.load`."""
        if self._library is None:
            raise CorruptEntryError("the entry has no kernel library, and its wrapper asks for one")
        return self._library.load()

    def built(self) -> BuiltLibraries:
        """The libraries built of one source each; one is loaded when asked for, with `Library.load`'s errors."""
        return self._built

    def triton(self) -> TritonLibrary:
        """The library of Triton kernels, the same for all graphs of the entry. Raises CorruptEntryError."""
        if self._loaded_triton is None:
            if self._triton is None:
                raise CorruptEntryError("the entry has no Triton kernels, and its wrapper asks for some")
            self._loaded_triton = self._triton()
        return self._loaded_triton

    def inline(self) -> Artifact:
        """All parts as one message. Raises CorruptEntryError: one is gone or damaged."""
        if self._inline is None:
            raise CorruptEntryError("the graph was changed since it was read, and has no other form")
        return self._inline()

    def missed(self, what: str) -> None:
        """Something of the graph was not linked, and torch loads (or compiles) it: counted."""
        counters.count("fallbacks", f"loader:{what}")


#: Makes a callable of parts, for the call at hand.
Load = Callable[[Parts], Any]


def parts_of_entry(entry: Entry, store: LocalStore) -> Parts:
    """Parts of a stored entry. Reading one that is gone or damaged raises CorruptEntryError."""
    content = content_of(entry)

    def read(name: str) -> bytes:
        data = store.read_blob(entry.blobs[name])
        if data is None:
            raise CorruptEntryError(f"part {name} of entry {entry.key[:12]} is gone or damaged")
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

    def file_of(blob: BlobRef) -> contextlib.AbstractContextManager[str]:
        path = store.blob_path(blob)
        if path is None:
            raise CorruptEntryError(f"a library of entry {entry.key[:12]} is gone or damaged")
        return contextlib.nullcontext(path)

    def file(blob: BlobRef) -> LibraryFile:
        return lambda: file_of(blob)

    def triton() -> TritonLibrary:
        return _triton_library(read(TRITON), content.choices, lambda made: _keep_choices(entry, store, made))

    library = Library(entry.blobs[LIBRARY].digest, file(entry.blobs[LIBRARY])) if LIBRARY in entry.blobs else None
    built: list[BlobRef] = []
    while (blob := entry.blobs.get(f"{BUILT}{len(built)}")) is not None:
        built.append(blob)
    return Parts(
        result,
        library,
        triton if TRITON in entry.blobs else None,
        entry.guards,
        content.effects,
        entry.metadata.compile_seconds,
        [(blob.digest, file(blob)) for blob in built],
        inline,
    )


def _triton_library(data: bytes, choices: Choices, keep: Callable[[Choices], None]) -> TritonLibrary:
    from fxpool.lowering.cuda import triton_kernels, triton_library  # a graph without such kernels does without them

    try:
        return triton_library.TritonLibrary(triton_kernels.decode(data), choices, keep)
    except (msgspec.DecodeError, SyntaxError) as error:
        raise CorruptEntryError(f"the Triton kernels do not decode: {error}") from error


def _keep_choices(entry: Entry, store: LocalStore, choices: Choices) -> None:
    """Put which candidates are fastest into an entry, so that the next process does not measure them."""
    try:
        content = msgspec.structs.replace(content_of(entry), choices=choices)
        store.publish(msgspec.structs.replace(entry, content=content), {})
    except StoreError as error:
        counters.count("bypasses", "choices_not_kept")
        log.info("the choice of Triton kernels is not kept: %s", error)


def generated_code(entry: Entry, store: LocalStore) -> list[tuple[str, str]]:
    """(name in tracebacks, text) of each module that Inductor generated for an entry: wrapper and kernels.

    Raises:
        CorruptEntryError: the entry is damaged, or this process can't read what its torch wrote.
    """
    from fxpool.torch_compat.inductor import aot, inner, output_code  # for `cache show`, which imports no torch before

    data = parts_of_entry(entry, store).result()
    if not data or content_of(entry).level not in (AOT, FX):  # to be traced again, or of no graph
        return []
    try:
        graphs = aot.graphs_of(aot.load_result(data)) if content_of(entry).level == AOT else [inner.load(data)]
    except (ImportError, AttributeError, EOFError, TypeError) as error:
        raise CorruptEntryError(f"entry {entry.key[:12]} can't be read by this torch: {error}") from error
    return [(output_code.name_of(graph), graph.source_code) for graph in graphs]


def parts_of_artifact(artifact: Artifact) -> Parts:
    """Parts of an inline artifact; its library passes through a file that is gone once it is loaded."""
    data = artifact.library

    @contextlib.contextmanager
    def written(library: bytes) -> Iterator[str]:
        with tempfile.NamedTemporaryFile(prefix="fxpool-kernels-", suffix=".so") as file:
            file.write(library)
            file.flush()
            yield file.name

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
