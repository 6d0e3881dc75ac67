"""Collects what Dynamo makes of a frame while it traces it: byte code, guards, and the code of inlined functions.

Dynamo tells a ``CompilePackage`` these, if there is one. `Recorder` takes its place; torch writes nothing down.
"""

from __future__ import annotations

import contextlib
import functools
import types
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from torch._dynamo import config, convert_frame, output_graph
from torch._dynamo import guards as torchs

from fxpool.torch_compat.dynamo.frames import rests_inside
from fxpool.torch_compat.frames import unguarded_reads, untraced_calls
from fxpool.torch_compat.frames.guard_calls import Listener
from fxpool.torch_compat.frames.guards import Guards, NoGuardsError, read, remembering
from fxpool.torch_compat.patching import patched

__all__ = ["Recorder", "recording"]


class Recorder:
    """Receives what Dynamo makes of one frame. Names are of globals of the frame's module.

    `code` is the frame's new byte code, None if Dynamo made none. `inlined` is the code of all functions that were
    traced; `imports` the module behind each name that Dynamo gave to one; `graphs` the callable in the place of each
    graph; `resumed` code and module of functions for the rest after a graph break; `installed` all names that Dynamo
    defined for the frame, and `shared` those for all frames of a module.
    `listener` has heard most of the guards, `guards` are the others, and
    `functions` those that Dynamo wrote for some of them (`guards.remembering`).
    `results` are (function, arguments, named ones, result) of calls that Dynamo made and takes for constants, and
    `called` the code of these functions.
    `probes` are names of attributes for which torch itself ran a program's ``__getattr__``, with texts that say so.
    `attributes` are (module, name) of lookups of a module's attributes, and `keys` the texts that code may have looked
    up in dictionaries or as attributes, computed ones too; `computes_all_attributes`: ``__dict__`` is among those, and
    no constant of code. `listed` are modules and classes whose names
    code listed with ``dir()``. `targets` are operators and functions that ran on tensors without data, by their ids.
    `modules` are those of libraries that Dynamo met without a source.
    `questions` are (class, abstract class) where Dynamo asked for subclasses. `met` are the objects that Dynamo met, by
    their sources.
    `literals` are Dynamo's variables for sets in byte code, by their ids.
    `refusal` says why the frame can't be kept, as a reason and a text; `error` ended the recording, and the frame was
    traced without it.
    """

    def __init__(self) -> None:
        self.code: types.CodeType | None = None
        self.guards: Guards | None = None
        self.listener: Listener | None = None
        self.functions: dict[str, str] = {}
        self.inlined: list[types.CodeType] = []
        self.imports: dict[str, str] = {}
        self.graphs: dict[str, Callable[..., Any]] = {}
        self.resumed: dict[str, tuple[types.CodeType, str]] = {}
        self.installed: frozenset[str] = frozenset()
        self.shared: set[str] = set()
        self.results: list[tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any], Any]] = []
        self.called: set[types.CodeType] = set()
        self.probes: dict[str, str] = {}
        self.attributes: list[tuple[types.ModuleType, str]] = []
        self.keys: set[str] = set()
        self.computes_all_attributes = False
        self.listed: list[types.ModuleType | type] = []
        self.targets: dict[int, Any] = {}
        self.modules: list[types.ModuleType] = []
        self.questions: dict[tuple[type, type], None] = {}
        self.met: dict[str, Any] = {}
        self.literals: dict[int, Any] = {}
        self.refusal: tuple[str, str] | None = None
        self.error: Exception | None = None

    def refuse(self, reason: str, detail: str) -> None:
        """Keep the first reason why the frame can't be kept."""
        self.refusal = self.refusal or (reason, detail)

    def calling(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function that does the same, and remembers the result."""
        if isinstance(code := getattr(function, "__code__", None), types.CodeType):
            self.called.add(code)

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            result = function(*args, **kwargs)
            self.results.append((function, args, kwargs, result))
            return result

        return call

    def globals(self) -> set[str]:
        """Return the globals that guards begin at."""
        found = self.guards.globals() if self.guards is not None else set()
        return found | (self.listener.globals() if self.listener is not None else set())

    def rests(self) -> list[types.CodeType]:
        """Return the code of all functions for the rest after a graph break."""
        return [
            *(code for code, _ in self.resumed.values()),
            *(rests_inside(self.code) if self.code is not None else ()),
        ]

    # ------------------------------------------------------------ called by Dynamo

    @contextlib.contextmanager
    def code_context(self, code: types.CodeType) -> Iterator[None]:
        yield

    def add_guarded_code(self, guards: bytes, code: types.CodeType) -> None:
        self.code = code

    def add_inlined_source(self, codes: Sequence[types.CodeType]) -> None:
        self.inlined += codes

    def update_device_type(self, graph: Any) -> None: ...

    def add_import_source(self, alias: str, module: str) -> None:
        self.imports[alias] = module

    def add_backend_id(self, name: str, function: Callable[..., Any]) -> None:
        self.graphs[name] = function

    def add_resume_function(self, code: types.CodeType, module: str, name: str | None) -> None:
        if name is not None:  # one with variables of a closure is among the constants of `code`
            self.resumed[name] = (code, module)

    def bypass_current_entry(self) -> None:
        self.refuse("torch", "torch's own packages keep no such frame either")

    bypass_current_compile = bypass_current_entry  # its name since 2.15


@contextlib.contextmanager
def recording(recorder: Recorder) -> Iterator[None]:
    """Have the guards that Dynamo builds in this block read into the recorder. Dynamo's lock must be held."""

    class Reading(torchs.CheckFunctionManager):
        def build_guards(self, guards: Sequence[Any], *arguments: Any, **named: Any) -> Any:
            if not config.guard_nn_modules:
                return super().build_guards(guards, *arguments, **named)
            builder, manager = super().build_guards([], *arguments, **named)
            recorder.listener = Listener(builder, manager.root)
            recorder.listener.make(guards)
            return builder, manager

        def serialize_guards(self, builder: Any, guards: Sequence[Any], graph: Any) -> bytes:
            heard = recorder.listener.heard if recorder.listener is not None else ()
            try:
                others = [guard for guard in guards if id(guard) not in heard]
                recorder.guards = read(self.shape_code_parts, builder, others, graph)
                recorder.installed = frozenset(graph.installed_globals)
            except NoGuardsError as error:
                recorder.refuse("guard", str(error))
            return b"read"

    def bypass(graph: Any, reason: str = "", **_: Any) -> None:
        """As torch's method, which also warns of a package, and raises an error if ``strict_precompile`` is set."""
        if graph.package is recorder:
            recorder.refuse("torch", f"torch's own packages keep no such frame either: {reason}")
            graph.package = None

    with contextlib.ExitStack() as stack:
        stack.enter_context(patched(convert_frame, "CheckFunctionManager", Reading))
        stack.enter_context(patched(output_graph.OutputGraph, "bypass_package", bypass))
        stack.enter_context(remembering(recorder.functions))
        stack.enter_context(unguarded_reads.heard(recorder))
        stack.enter_context(untraced_calls.heard(recorder))
        yield
