"""Prove and digest the program's code that a graph is compiled with: hashed for the key, compared in the worker.

    dependencies     functions and operators from outside torch that the graph names, with all their references
    registrations    kernels for torch's own operators, and entries in Inductor's tables
    changes          functions of torch that were replaced by the program's, or have another name than their own;
                     those that an import replaces by itself (`packages.changing`) are replaced in a worker, too

A worker imports the program's modules again. It ends up with the same code only if nothing differs: the text of a file,
the environment at import, later changes to a module. A request therefore carries digests, and the worker computes its
own; a graph whose code differs is compiled in the program's own process.
"""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import os
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fxpool.codecache.code import operator_code, packages
from fxpool.codecache.code.code_references import references
from fxpool.codecache.code.grammar import UnprovenError
from fxpool.codecache.code.proof import Proof, digest_of
from fxpool.installed_packages import FactCache
from fxpool.torch_compat.changes import added_kernels, changed_constants, changed_namespaces, torch_sources
from fxpool.torch_compat.operators import (
    inductor_tables,
    operator_tables,
    operators,
    pickled_definitions,
    registrations,
)
from fxpool.torch_compat.operators.operator_overrides import OperatorOverride

__all__ = ["Covered", "ProgramCode", "SentCode", "code_of", "is_of_any_graph", "is_registered", "of"]

_REGISTERED = "registered: "
_CHANGED = "changed: "
_CHANGED_BY_IMPORT = "changed by an import: "
_KERNEL = "kernel:"
_TABLES = "registered: all of Inductor's tables"

#: For each dependency or registration, the functions that its digest covers, with their digests.
Covered = dict[str, dict[str, str]]


@dataclasses.dataclass(frozen=True)
class ProgramCode:
    """Digests by name. `changed` are the places where the program's code replaced torch's: no worker has them.

    `modules` are those whose import replaces torch's code: a worker imports them.
    """

    digests: dict[str, str]
    changed: Sequence[str] = ()
    modules: Sequence[str] = ()

    def compared(self) -> dict[str, str]:
        """Return the digests that a worker compares. Triton kernels are compared when the graph is rebuilt."""
        return {name: digest for name, digest in self.digests.items() if not name.startswith((_KERNEL, _CHANGED))}


def of(
    dependencies: Mapping[str, Any],
    *,
    after_autograd: bool = False,
    covered: Covered | None = None,
    answers: FactCache | None = None,
    constants_too: bool = True,
) -> ProgramCode:
    """Digest the code of a graph's dependencies (`GraphEncoder.dependencies`) and this process's registrations.

    `after_autograd`: the graph comes from AOTAutograd, so backwards and similar code will not run again. `covered` is
    filled with the functions that each digest covers. `answers` has what other processes know of torch's
    sources; without it, or without `constants_too`, torch's constants are not examined.

    Raises:
        UnprovenError: code is outside the grammar, so it can't be compared in another process.
    """
    digests: dict[str, str] = {}
    read_tables: list[str] = []

    modules: set[str] = set()

    def prove(name: str, value: Any, *, of_inductor: bool = False) -> None:
        module = packages.changing(value) if name.startswith(_CHANGED) else ""
        proof = Proof(of_inductor=of_inductor or bool(module), covered=_covered_by(covered, name))
        try:
            if module:
                modules.add(module)
                packages.add_change(proof, value, name)
                digests[_CHANGED_BY_IMPORT + name.removeprefix(_CHANGED)] = proof.digest()
            else:
                proof.add(value)
                digests[name] = proof.digest()
        except UnprovenError as error:
            raise UnprovenError(f"{name}: {error.part}") from error
        except RecursionError:
            raise UnprovenError(f"{name}: its references are nested too deeply") from None
        if proof.reads_tables:
            read_tables.append(name)

    for name, target in sorted(dependencies.items()):
        if operators.is_overload(target) or operators.is_packet(target):
            proof = Proof(covered=_covered_by(covered, name))
            inner = operator_code.parts(target, proof, after_autograd=after_autograd)
            digests.update({f"{name} {part}": digest for part, digest in inner.items()})
        else:
            prove(name, target)
    sources = torch_sources.loaded(operator_tables.version(), answers)
    changes = [
        (change.name, change.value) for change in changed_namespaces.foreign(sources, after_autograd=after_autograd)
    ]
    changes += added_kernels.foreign()
    for place, value in changes:
        prove(_CHANGED + place, value)
    if answers is not None and constants_too:
        for change in changed_constants.changed(sources):
            if change.traced_only and after_autograd:
                continue
            if isinstance(change.value, str):
                digests[_CHANGED + change.name] = change.value
            else:
                prove(_CHANGED + change.name, change.value)
        sources.keep(answers)
    try:
        for name, kernel in registrations.overridden():
            prove(_REGISTERED + name, kernel.value)
    except registrations.NotFoundError as error:
        raise UnprovenError(str(error)) from error
    for operator, key, library in registrations.overridden_in_cpp(after_autograd=after_autograd):
        raise UnprovenError(f"{operator} for {key}, which {os.path.basename(library)} overrides")
    if not operator_tables.are_known():
        digests[_TABLES] = operator_tables.digest()
    reached = _reached_by(dependencies)
    entries = list(inductor_tables.entries())
    # Code that reads a table may come to each entry: these are added if there is any.
    for entry in [*filter(reached, entries), *itertools.filterfalse(reached, entries)]:
        if not (reached(entry) or read_tables):
            continue
        if entry.is_torchs or entry.value is None:
            digests[_REGISTERED + entry.name] = operator_tables.structure(entry.value)
        else:
            prove(_REGISTERED + entry.name, entry.value, of_inductor=True)
        if entry.vouched is not None:
            digests[f"{_REGISTERED}{entry.name} code"] = code_of(entry.vouched)
    changed = [name.removeprefix(_CHANGED) for name in digests if name.startswith(_CHANGED)]
    return ProgramCode(digests, changed, sorted(modules))


def examine_torch(seconds: float) -> bool:
    """Examine torch's own modules for some seconds, once per process; return whether more is left.

    `of` does the rest. A process that has examined them forks others, which need not.
    """
    if changed_namespaces.examine_some(torch_sources.loaded(operator_tables.version()), seconds):
        return True
    of({})
    operator_tables.digest()
    return False


def _reached_by(dependencies: Mapping[str, Any]) -> Callable[[inductor_tables.Entry], bool]:
    """Return a function that tells whether graphs with these dependencies may come to an entry.

    Any graph may come to an operator of torch, through a decomposition or a pass. Only graphs that name an operator of
    the program's do. Higher-order operators are not decomposed to, either.
    """
    packets = {getattr(target, "overloadpacket", target) for target in dependencies.values()}

    def reached(entry: inductor_tables.Entry) -> bool:
        operator = entry.operator
        if operator is None or operators.is_higher_order(operator):
            return operator is None or operators.is_torchs_higher_order(operator)
        if not (operators.is_overload(operator) or operators.is_packet(operator)):
            return operator in packets or not entry.name.startswith("side effect")
        return operators.is_builtin(operator) or getattr(operator, "overloadpacket", operator) in packets

    return reached


def is_registered(name: str) -> bool:
    """Return whether a digest is of code that the program registered, and not of a dependency of the graph."""
    is_always_there = name == _TABLES or name.startswith(f"{_REGISTERED}side effect")
    return name.startswith(_REGISTERED) and not is_always_there


def is_of_any_graph(name: str) -> bool:
    """Return whether a digest is of a registration that may run for any graph, and not only for an operator."""
    return is_registered(name) and not inductor_tables.of_operator(name.removeprefix(_REGISTERED))


def code_of(value: Any) -> str:
    """Return the digest of the methods of an object with a ``uuid()``, of its class and its bases.

    With the uuid, the program vouches for what its object does. Programs forget to change it when they change the code,
    so the code counts as well. Of methods that are not proven, the code and the plain data that it refers to are
    digested, through the program's functions, classes and modules.
    """
    whole = hashlib.sha256()
    for cls in type(value).__mro__:
        for name, attribute in sorted(vars(cls).items()):
            function = getattr(attribute, "__func__", getattr(attribute, "fget", attribute))
            if isinstance(function, types.FunctionType):
                try:
                    text = digest_of(function, of_inductor=True)
                except UnprovenError:
                    text = repr(list(references(function)))
                whole.update(f"{name} {text}".encode())
    return whole.hexdigest()


def _covered_by(covered: Covered | None, name: str) -> dict[str, str] | None:
    return covered.setdefault(name, {}) if covered is not None else None


@dataclasses.dataclass(frozen=True)
class SentCode:
    """The part sent to a worker: digests of code that it runs, and the names of the graph's dependencies.

    `configured` are digests of option values that are not plain data and are sent by name. `operators` and `registered`
    are pickled code that a worker can't import: see `pickled_definitions`.
    """

    digests: Mapping[str, str]
    dependencies: Sequence[str]
    configured: Mapping[str, str]
    after_autograd: bool
    operators: Sequence[bytes] = ()
    registered: Sequence[bytes] = ()

    @staticmethod
    def of(
        code: ProgramCode,
        dependencies: Mapping[str, Any],
        configured: Mapping[str, str],
        *,
        after_autograd: bool = False,
        operators: Sequence[bytes] = (),
    ) -> SentCode:
        """Select the part of `code` to send for a graph with these dependencies."""
        names = sorted(name for name in dependencies if not name.startswith(_KERNEL))
        registered = inductor_tables.for_a_worker(_reached_by(dependencies))
        return SentCode(code.compared(), names, configured, after_autograd, operators, registered)

    def bring(self) -> None:
        """Define and register the code that was sent by value in this process. Raises NotBroughtError."""
        for operator in self.operators:
            pickled_definitions.bring_operator(operator)
        pickled_definitions.settle_registrations(self.registered)

    def other_configured(self, digests: Mapping[str, str]) -> str:
        """Return the name of configured code that differs from `digests`, this process's, or ""."""
        return next((name for name, digest in sorted(self.configured.items()) if digests.get(name) != digest), "")

    def difference(
        self, answers: FactCache | None = None, *, imported: bool = True
    ) -> tuple[str, list[OperatorOverride]]:
        """Compare with this process: return the name of code that differs (or ""), and the operators that differ.

        These operators have different registrations here. A compile that uses none of them has the same result.
        `answers` as in `of`. `imported`: modules of the program were imported, and may have changed torch's constants.
        """
        try:
            targets = {name: _found(name) for name in self.dependencies}
            code = of(targets, after_autograd=self.after_autograd, answers=answers, constants_too=imported)
            if code.changed:
                return f"{_CHANGED}{code.changed[0]}", []
            here = code.compared()
            if _TABLES in self.digests:
                here[_TABLES] = operator_tables.digest()
        except UnprovenError as error:
            return error.part, []
        except (ImportError, AttributeError, KeyError) as error:
            return f"{type(error).__name__}: {error}", []
        differing: list[OperatorOverride] = []
        for name in sorted(self.digests.keys() | here.keys()):
            if self.digests.get(name) == here.get(name):
                continue
            registered = name.removeprefix(_REGISTERED)
            of_one = inductor_tables.of_operator(registered) if registered != name else []
            if not of_one:
                where = "" if name in self.digests and name in here else ", in one of the two"
                return f"{name}{where}", []
            differing += of_one
        return "", differing


def _found(name: str) -> Any:
    """Return the object that a dependency's name refers to in this process. Raises ImportError, AttributeError."""
    kind, _, rest = name.partition(":")
    if kind == "operator":
        return operators.find_overload(rest) if "." in rest.partition("::")[2] else operators.find_packet(rest)
    module, _, qualified = rest.partition(":")
    return operators.resolve(module, qualified)
