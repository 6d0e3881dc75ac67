"""Digest the program's code that a graph is compiled with: hashed for the key, checked in the worker.

    dependencies     functions, operators and kernels from outside torch that the graph names, with all their references
    registrations    kernels for torch's own operators, and changes to Inductor's tables
    replacements     torch functions and methods that were renamed or replaced by the program's

A worker imports the program's modules again. It ends up with the same code only if nothing differs: the text of a file,
the environment at import, later changes to a module. A request therefore carries digests, and the worker computes its
own; a graph whose code differs is compiled in the program's own process.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from fxpool.codecache.code import sources, torch_objects
from fxpool.codecache.code.digester import Digester
from fxpool.codecache.code.undigestable import UndigestableError
from fxpool.torch_compat.operators import by_value, inductor_registrations, operators, registrations, replaced
from fxpool.torch_compat.operators.otherwise import Otherwise

__all__ = ["Covered", "ProgramCode", "SentCode", "of"]

_REGISTERED = "registered: "
_KERNEL = "kernel:"
_RENAMED = "torch's functions under other names than their own"
#: The name of the tables' digest; in a worker, tables are compared by meaning instead.
TABLES = "registered: tables of lowerings and decompositions"


#: Name of a dependency or registration to the functions, values and variables that its digest covers, and theirs.
Covered = dict[str, dict[str, str]]


@dataclasses.dataclass(frozen=True)
class ProgramCode:
    """Digests by name, and the environment variables that the code reads (None: not set)."""

    digests: dict[str, str]
    environment: dict[str, str | None]

    def traced(self) -> dict[str, str]:
        """Return the digests of code that compiling runs.

        Other code is called by compiled code, in the program's process. Triton kernels are not included: they are
        compared when a graph is rebuilt.
        """
        return {
            name: digest
            for name, digest in self.digests.items()
            if torch_objects.LATER not in name and not name.startswith(_KERNEL)
        }


def of(dependencies: Mapping[str, Any], *, after_autograd: bool = False, covered: Covered | None = None) -> ProgramCode:
    """Digest the code of a graph's dependencies (`GraphEncoder.dependencies`) and this process's registrations.

    `after_autograd`: AOTAutograd made the graph, and does not ask again for backwards and the like. `covered` is filled
    with what each digest covers, which takes as long again.

    Raises:
        UndigestableError: code has no digest, so that it can't be compared elsewhere.
    """
    digests: dict[str, str] = {}
    environment: dict[str, str | None] = {}

    def examine(name: str, value: Any) -> None:
        try:
            examined = sources.examine(value, covered=_covered_by(covered, name))
        except UndigestableError as error:
            raise UndigestableError(f"{name}: {error.what}") from error
        digests[name] = examined.digest
        environment.update(examined.environment)

    for name, target in sorted(dependencies.items()):
        if operators.is_overload(target) or operators.is_packet(target):
            digester = Digester(covered=_covered_by(covered, name))
            digester.met(target)
            for part, digest in torch_objects.parts_of_operator(
                target, digester, after_autograd=after_autograd
            ).items():
                digests[f"{name} {part}"] = digest
            environment.update(digester.environment)
        else:
            examine(name, target)
    try:
        for name, kernel in registrations.overridden():
            examine(_REGISTERED + name, kernel.value)
    except registrations.NotFoundError as error:
        raise UndigestableError(str(error)) from error
    for name, value in inductor_registrations.of_the_program():
        examine(_REGISTERED + name, value)
    examine(_RENAMED, repr(replaced.renamed()))  # one text: as a list it takes 1 ms to digest
    for name, value in replaced.of_the_program():
        examine(_REGISTERED + name, value)
    if (changed := inductor_registrations.tables()) is not None:
        examine(TABLES, changed.for_key())
    return ProgramCode(digests, environment)


def _covered_by(covered: Covered | None, name: str) -> dict[str, str] | None:
    return covered.setdefault(name, {}) if covered is not None else None


@dataclasses.dataclass(frozen=True)
class SentCode:
    """The part that travels: digests of traced code, names of the graph's dependencies, and changed tables.

    `configured` are digests of the options' values that are not plain data and come to a worker by name. `operators`
    and `registered` are code by value, where imports don't bring it: see `by_value`.
    """

    digests: Mapping[str, str]
    dependencies: Sequence[str]
    tables: inductor_registrations.Tables | None
    configured: Mapping[str, str]
    after_autograd: bool
    operators: Sequence[bytes] = ()
    registered: Sequence[bytes] = ()

    @staticmethod
    def of(
        code: ProgramCode,
        dependencies: Iterable[str],
        configured: Mapping[str, str],
        *,
        after_autograd: bool = False,
        operators: Sequence[bytes] = (),
    ) -> SentCode:
        """Select the part of `code` that travels, for a graph with these dependencies."""
        names = sorted(name for name in dependencies if not name.startswith(_KERNEL))
        tables, registered = inductor_registrations.tables(), inductor_registrations.for_a_worker()
        return SentCode(code.traced(), names, tables, configured, after_autograd, operators, registered)

    def bring(self) -> None:
        """Define and register in this process what came by value. Raises NotBroughtError."""
        for operator in self.operators:
            by_value.bring_operator(operator)
        by_value.settle_registrations(self.registered)

    def other_configured(self, here: Mapping[str, str]) -> str:
        """Return the name of configured code that differs from `here`, this process's digests; empty if none does."""
        return next((name for name, digest in sorted(self.configured.items()) if here.get(name) != digest), "")

    def difference(self) -> tuple[str, list[Otherwise]]:
        """Compare with this process. Return the name of code that differs (empty if none does), and the operators with
        different registrations: a compile that meets none of these is the same here."""
        try:
            targets = {name: _found(name) for name in self.dependencies}
            here = of(targets, after_autograd=self.after_autograd).traced()
        except UndigestableError as error:
            return error.what, []
        except (ImportError, AttributeError, KeyError) as error:
            return f"{type(error).__name__}: {error}", []
        operators: list[Otherwise] = self.tables.disagreements() if self.tables is not None else []
        for name in sorted(self.digests.keys() | here.keys()):
            if name != TABLES and self.digests.get(name) != here.get(name):
                registered = name.removeprefix(_REGISTERED)
                of_one = inductor_registrations.of_operator(registered) if registered != name else None
                if of_one is None:
                    where = "" if name in self.digests and name in here else ", in one of the two"
                    return f"{name}{where}", []
                operators.append(of_one)
        return "", operators


def _found(name: str) -> Any:
    """Return the object that a dependency's name leads to in this process. Raises ImportError, AttributeError."""
    kind, _, rest = name.partition(":")
    if kind == "operator":
        return operators.find_overload(rest) if "." in rest.partition("::")[2] else operators.find_packet(rest)
    module, _, qualified = rest.partition(":")
    return operators.resolve(module, qualified)
