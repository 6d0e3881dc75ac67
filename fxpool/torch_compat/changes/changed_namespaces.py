"""Finds code in torch's modules and classes that a program put there: its own, or torch's from another place.

A worker has a fresh torch. So a graph may be traced in a worker only if the program's process has the same functions in
the same places; `code_owner` tells whose a function is, and `substituted_values` whether it is in its place.

Only modules are read that AOTAutograd or Inductor runs. Each namespace is examined once, and again if one of its values
is another object: comparing 24,000 of them takes 1 ms.
"""

from __future__ import annotations

import builtins
import functools
import itertools
import operator
import re
import sys
import time
import types
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import torch

from fxpool.torch_compat.changes.name_bindings import IMPORT
from fxpool.torch_compat.changes.substituted_values import is_in_place, is_substitute
from fxpool.torch_compat.changes.torch_sources import Sources, source
from fxpool.torch_compat.operators.code_owner import (
    C_CODE,
    DATA,
    OPERATOR_MODULES,
    is_below,
    is_loaded_module,
    is_own,
)

__all__ = ["Foreign", "examine_some", "examined_modules", "foreign", "listed"]

#: Modules that run after AOTAutograd as well: while Inductor lowers a graph.
_OF_INDUCTOR = (
    "torch._inductor", "torch._ops", "torch._prims", "torch._prims_common", "torch._refs", "torch._decomp",
    "torch._meta_registrations", "torch._subclasses", "torch._higher_order_ops", "torch._library", "torch.fx",
    "torch.utils._pytree", "torch.utils._python_dispatch", "torch.utils._sympy", "torch.utils._mode_utils",
    "torch.backends", "torch._guards",
)  # fmt: skip
#: Modules that run only while AOTAutograd traces a graph.
_OF_AUTOGRAD = (
    "torch._tensor", "torch.functional", "torch.nn.functional", "torch.special", "torch.linalg", "torch.fft",
    "torch.sparse", "torch.nested", "torch.autograd", "torch._functorch", "torch.amp", "torch.overrides",
    "torch._jit_internal", "torch._linalg_utils", "torch._lowrank", "torch._numpy", "torch.nn.attention",
    "torch.distributed.tensor", "torch.distributed._functional_collectives", "torch.masked", "torch.compiler",
    "torch.utils.checkpoint", "torch.random", *OPERATOR_MODULES,
)  # fmt: skip
# Of the module `torch`, names that tracing uses; programs often replace `torch.load` and the like, which it does not.
_NOT_TRACED = frozenset(
    ("load", "save", "compile", "manual_seed", "seed", "initial_seed", "get_rng_state", "set_rng_state", "typename",
     "set_printoptions", "set_default_device", "set_default_dtype", "set_num_threads", "use_deterministic_algorithms")
)  # fmt: skip
# Parts of these packages that no compile runs.
# `ops_handler` generates its methods from text, so that nothing tells where they come from; `compile_tasks` has the
# modules that Inductor generates. The others begin compiles, record them, store them, or run compiled code: programs
# wrap them to count or to trace.
_NEVER = ("torch.autograd.profiler", "torch.autograd.profiler_util", "torch.autograd.gradcheck",
          "torch.fx.experimental.migrate_gradual_types", "torch._inductor.compile_worker",
          "torch._inductor.ops_handler", "torch._inductor.runtime.compile_tasks", "torch._inductor.codecache",
          "torch._inductor.debug", "torch._inductor.metrics", "torch._inductor.async_compile",
          "torch._inductor.output_code", "torch._inductor.cudagraph_trees",
          "torch._inductor.cudagraph_utils", "torch._inductor.standalone_compile")  # fmt: skip
# Names in `compile_fx` that begin a compile or the lowering of a graph: programs wrap them to count compiles.
_BEGINS = frozenset(
    ("compile_fx", "compile_fx_aot", "compile_fx_inner", "_compile_fx_inner", "_compile_fx_main",
     "_maybe_wrap_and_compile_fx_main", "compile_fx_forward", "compile_fx_backward", "fx_codegen_and_compile",
     "GraphLowering", "cudagraphify", "cudagraphify_impl")
)  # fmt: skip
#: Functions that Dynamo replaces by its own while it runs.
_REPLACED_BY_DYNAMO = ("torch.fx.graph_module._forward_from_src",)
# Attributes of a class or a module that no code of its body made.
_OF_EVERY_CLASS = frozenset(
    ("__dict__", "__weakref__", "__doc__", "__module__", "__annotations__", "__qualname__", "__slots__",
     "__dataclass_fields__", "__dataclass_params__", "__match_args__", "__abstractmethods__", "_abc_impl",
     "__loader__", "__spec__", "__builtins__")
)  # fmt: skip


# Data, and the attributes that stand for ``__slots__``.
_NEVER_FOREIGN = DATA | {types.MemberDescriptorType}


class Foreign(NamedTuple):
    """Code of a program in one of torch's places. `traced_only`: only AOTAutograd runs it, Inductor does not."""

    name: str
    value: Any
    traced_only: bool


class _Namespace:
    """One module, or a class of its, with the values that were examined and the foreign ones among them."""

    def __init__(
        self,
        name: str,
        module: types.ModuleType,
        cls: type | None,
        wanted: Callable[[str, Any], bool],
        traced_only: bool,
    ) -> None:
        self.name, self._module, self._class, self._wanted = name, module, cls, wanted
        self.traced_only = traced_only
        self.attributes: Mapping[str, Any] = vars(module if cls is None else cls)
        self.foreign: list[tuple[str, Any]] = []
        self.examined: list[Any] = []
        self._values: Any = ()
        self._get: Callable[[Any], Any] = _nothing
        self.changes = 0  # how often another value was met

    @property
    def is_examined(self) -> bool:
        """Whether it was examined before."""
        return bool(self.examined)

    def examine(self, own: set[int], sources: Sources) -> None:
        """Examine the values if another one was put in.

        `own` collects the ids of values that are torch's: modules of torch import the same ones.
        """
        try:
            # Equal lists are equal by identity almost always. Others may differ in data, such as a counter.
            if (now := [*self.attributes.values()]) == self.examined:
                return
            self.changes += 1
            if len(now) == len(self.examined) and self._get(self.attributes) == self._values:
                self.examined = now
                return
        except Exception:  # a name is gone, or objects that cannot be compared
            pass
        code = {
            name: value
            for name, value in [*self.attributes.items()]
            if (type(value) not in _NEVER_FOREIGN or value is None) and name not in _OF_EVERY_CLASS
        }
        self.examined = [*self.attributes.values()]
        self._get = operator.itemgetter(*code) if code else _nothing
        self._values = self._get(self.attributes)
        home = vars(self._module)
        imports = sources.imports(self._module)[0] if self._class is None else {}
        self.foreign = [
            (name, value)
            for name, value in code.items()
            if not is_in_place(name, value, home) and self._is_foreign(name, value, own, sources, imports.get(name))
        ]

    def _is_foreign(
        self, name: str, value: Any, own: set[int], sources: Sources, source: tuple[str, str] | None
    ) -> bool:
        """Return whether a value counts as the program's; `source` is (module, name there) if the name is imported."""
        if type(value) is types.ModuleType:
            return self._is_another_module(name, value, sources, source) and self._wanted(name, value)
        is_imported = source is not None and _has(*source, value)
        if is_imported and source is not None and self._is_examined_too(source[0]):
            return False
        if id(value) in own or is_own(value):
            own.add(id(value))
            if is_imported or not is_substitute(self._module, self._class, name, value, sources):
                return False
        return self._wanted(name, value)

    def _is_another_module(
        self, name: str, value: types.ModuleType, sources: Sources, source: tuple[str, str] | None
    ) -> bool:
        """Return whether torch's text binds a name to another module, or a module is neither torch's nor a library."""
        if source is not None:
            return not (_has(*source, value) or sys.modules.get(".".join(source)) is value)
        given = vars(value).get("__name__")
        if sys.modules.get(str(given)) is value and given in (name, f"{self.name}.{name}"):
            return False
        binding = sources.binding(self._module, name) or ""
        if binding.startswith(IMPORT):
            return sys.modules.get(binding.removeprefix(IMPORT)) is not value
        return not is_loaded_module(value)

    def _is_examined_too(self, module: str) -> bool:
        """Return whether another module is examined for all graphs that this one is examined for."""
        traced_only = _is_traced_only(module)
        return traced_only is False or (traced_only is True and self.traced_only)


def _has(module: str, name: str, value: Any) -> bool:
    return module in sys.modules and vars(sys.modules[module]).get(name, _MISSING) is value


_MISSING = object()


def _nothing(attributes: Any) -> Any:
    return ()


class _Examined:
    """The namespaces of the loaded modules, by the number of modules that were loaded when they were listed.

    `as_attributes` has the dictionary of the package that has a module as an attribute: code of torch that says
    ``torch.nn.functional.pad`` finds the module there, not in `sys.modules`.
    """

    def __init__(self) -> None:
        self.modules: dict[str, types.ModuleType] = {}
        self.as_attributes: dict[str, tuple[Mapping[str, Any], types.ModuleType, bool]] = {}
        self.spaces: list[_Namespace] = []
        self.loaded = 0
        self.listed = 0
        self._values: list[Any] = []
        self._calm: list[_Namespace] = []
        self._restless: list[_Namespace] = []

    def examine(self, sources: Sources) -> None:
        """Examine each namespace of which a value is another object than the last time."""
        own: set[int] = set()
        for space in self._restless:
            space.examine(own, sources)
        try:
            # Equal lists are equal by identity almost always. Others may differ in data, such as a counter.
            if self._of_calm() == self._values and len(self._calm) + len(self._restless) == len(self.spaces):
                return
        except Exception:  # objects that cannot be compared
            pass
        spaces = [*self.spaces]  # threads may add some
        for space in spaces:
            space.examine(own, sources)
        # A module that counts something would have all others compared one by one.
        self._restless = [space for space in spaces if space.changes > 1]
        self._calm = [space for space in spaces if space.changes <= 1]
        self._values = [*itertools.chain.from_iterable([space.examined for space in self._calm])]

    def _of_calm(self) -> list[Any]:
        return [*itertools.chain.from_iterable([space.attributes.values() for space in self._calm])]

    def examine_some(self, sources: Sources, seconds: float) -> bool:
        """Examine some of the namespaces that were never examined; return whether more are left."""
        end = time.monotonic() + seconds
        own: set[int] = set()
        left = [space for space in self.spaces if not space.is_examined]
        for space in left:
            if time.monotonic() > end:
                return True
            space.examine(own, sources)
        return False


_examined = _Examined()


def foreign(sources: Sources, *, after_autograd: bool = False) -> list[Foreign]:
    """Return the program's code in torch's places, sorted; usually none.

    `after_autograd`: leave out code that only AOTAutograd runs.
    """
    _list_new_modules()
    by_name: dict[str, Foreign] = {}  # threads may have listed a module twice
    _examined.examine(sources)
    for space in [space for space in [*_examined.spaces] if space.foreign]:
        for name, value in space.foreign:
            # Inductor calls some of torch's functions in C as well.
            if not (space.traced_only and after_autograd) or type(value) in C_CODE:
                by_name[f"{space.name}.{name}"] = Foreign(f"{space.name}.{name}", value, space.traced_only)
    for full_name, (package, module, traced_only) in [*_examined.as_attributes.items()]:
        value = package.get(full_name.rpartition(".")[2], module)
        # A package may have a function of that name instead.
        replaced = value is not module and (type(value) is types.ModuleType or not is_own(value))
        if replaced and not (traced_only and after_autograd):
            by_name[full_name] = Foreign(full_name, value, traced_only)
    return [by_name[name] for name in sorted(by_name)]


def examine_some(sources: Sources, seconds: float) -> bool:
    """Examine modules and classes that were never examined, for some seconds; return whether more are left."""
    _list_new_modules()
    return _examined.examine_some(sources, seconds)


def listed() -> int:
    """Return how often a module of torch was new so far: `examined_modules` yields the same as long as this does."""
    _list_new_modules()
    return _examined.listed


def examined_modules() -> Iterator[tuple[str, types.ModuleType, bool]]:
    """Yield (name, module, traced only) of torch's loaded modules whose code counts, without `torch` itself."""
    _list_new_modules()
    for name, module in [*_examined.modules.items()]:
        if (traced := _is_traced_only(name)) is not None:
            yield name, module, traced


@functools.cache
def _is_traced_only(name: str) -> bool | None:
    """Return whether only AOTAutograd runs a module's code; None if no compile does."""
    if is_below(name, _NEVER):
        return None
    return False if is_below(name, _OF_INDUCTOR) else True if is_below(name, _OF_AUTOGRAD) else None


def _list_new_modules() -> None:
    if len(sys.modules) == _examined.loaded:
        return
    for name, module in sys.modules.copy().items():
        if not name.startswith("torch") or _examined.modules.get(name) is module:
            continue
        _examined.modules[name] = module
        _examined.listed += 1
        if name == "torch":
            _examined.spaces.append(_Namespace(name, module, None, _is_traced, True))
        elif (traced_only := _is_traced_only(name)) is not None:
            _add(name, module, traced_only)
            package = sys.modules.get(name.rpartition(".")[0])
            if package is not None:
                _examined.as_attributes[name] = vars(package), module, traced_only
    _examined.loaded = len(sys.modules)


def _add(name: str, module: types.ModuleType, traced_only: bool) -> None:
    _examined.spaces.append(_Namespace(name, module, None, functools.partial(_is_defined, module), traced_only))
    for cls in [value for value in vars(module).values() if isinstance(value, type)]:
        is_tensor = cls is torch.Tensor and name == "torch._tensor"
        if is_tensor or vars(cls).get("__module__") == name:
            # Functions that a program adds to `torch.Tensor` change nothing of torch's.
            wanted = _overrides if is_tensor else functools.partial(_is_not_set, _SET.get(cls.__qualname__, ()))
            _examined.spaces.append(_Namespace(f"{name}.{cls.__qualname__}", module, cls, wanted, traced_only))


def _is_not_set(may_be: tuple[str, ...], name: str, value: Any) -> bool:
    return name not in may_be


#: Class -> methods that may be any function. Programs wrap these to count compiles, and torch sets `forward` to the
#: code of the graph that it loaded last.
_SET = {
    "GraphLowering": ("__init__",),
    "_CodeOnlyModule": ("forward",),
    "_InProcessFxCompile": ("codegen_and_compile",),
}


def _is_traced(name: str, value: Any) -> bool:
    return name not in _NOT_TRACED and not isinstance(value, types.ModuleType) and name in _names_of_torch()


def _overrides(name: str, value: Any) -> bool:
    return hasattr(torch._C.TensorBase, name) or name in _names_in_source(sys.modules["torch._tensor"])


def _is_defined(module: types.ModuleType, name: str, value: Any) -> bool:
    """Return whether torch's module defines or imports a name itself, or the name hides a builtin."""
    if name in _BEGINS and module.__name__ == "torch._inductor.compile_fx":
        return False
    if f"{module.__name__}.{name}" in _REPLACED_BY_DYNAMO and is_own(value):
        return False
    if module.__name__ in OPERATOR_MODULES:
        return True  # there is no source to tell an addition from a replaced function
    return name in _names_in_source(module) or hasattr(builtins, name)


@functools.cache
def _names_of_torch() -> frozenset[str]:
    return frozenset(
        (*dir(torch._C), *dir(torch._C._VariableFunctions), *torch.functional.__all__, *_names_in_source(torch))
    )


@functools.cache
def _names_in_source(module: types.ModuleType) -> frozenset[str]:
    """Return all words in a module's source: a name outside of them is an addition. Read only if there is one."""
    return frozenset(re.findall(r"\w+", source(module)) or vars(module))
