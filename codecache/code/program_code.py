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
#: The name of the digest of Inductor's tables. A worker compares tables by meaning instead.
TABLES = "registered: tables of lowerings and decompositions"


#: For each dependency or registration, the functions, values and variables that its digest covers, with their digests.
Covered = dict[str, dict[str, str]]


@dataclasses.dataclass(frozen=True)
class ProgramCode:
    """Digests by name, and the environment variables that the code reads (None if not set)."""

    digests: dict[str, str]
    environment: dict[str, str | None]

    def traced(self) -> dict[str, str]:
        """Return the digests of code that runs during the compile.

        Other code is called by the compiled code, in the program's process. Triton kernels are not included, because
        they are compared when the graph is rebuilt.
        """
        return {
            name: digest
            for name, digest in self.digests.items()
            if torch_objects.LATER not in name and not name.startswith(_KERNEL)
        }


def of(dependencies: Mapping[str, Any], *, after_autograd: bool = False, covered: Covered | None = None) -> ProgramCode:
    """Digest the code of a graph's dependencies (`GraphEncoder.dependencies`) and this process's registrations.

    `after_autograd`: the graph comes from AOTAutograd, so backwards and similar code will not run again. `covered` is
    filled with the items that each digest covers, which doubles the time.

    Raises:
        UndigestableError: code has no digest, so it can't be compared in another process.
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
    examine(_RENAMED, repr(replaced.renamed()))  # as a single text: digesting the list takes 1 ms
    for name, value in replaced.of_the_program():
        examine(_REGISTERED + name, value)
    if (changed := inductor_registrations.tables()) is not None:
        examine(TABLES, changed.for_key())
    return ProgramCode(digests, environment)


def _covered_by(covered: Covered | None, name: str) -> dict[str, str] | None:
    return covered.setdefault(name, {}) if covered is not None else None


@dataclasses.dataclass(frozen=True)
class SentCode:
    """The part sent to a worker: digests of traced code, names of the graph's dependencies, and changed tables.

    `configured` are digests of option values that are not plain data and are sent by name. `operators` and `registered`
    are pickled code that a worker can't import: see `by_value`.
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
        """Select the part of `code` to send for a graph with these dependencies."""
        names = sorted(name for name in dependencies if not name.startswith(_KERNEL))
        tables, registered = inductor_registrations.tables(), inductor_registrations.for_a_worker()
        return SentCode(code.traced(), names, tables, configured, after_autograd, operators, registered)

    def bring(self) -> None:
        """Define and register the code that was sent by value in this process. Raises NotBroughtError."""
        for operator in self.operators:
            by_value.bring_operator(operator)
        by_value.settle_registrations(self.registered)

    def other_configured(self, here: Mapping[str, str]) -> str:
        """Return the name of configured code that differs from `here`, this process's digests, or ""."""
        return next((name for name, digest in sorted(self.configured.items()) if here.get(name) != digest), "")

    def difference(self) -> tuple[str, list[Otherwise]]:
        """Compare with this process: return the name of code that differs (or ""), and the operators that differ.

        These operators have different registrations here. A compile that uses none of them has the same result.
        """
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
    """Return the object that a dependency's name refers to in this process. Raises ImportError, AttributeError."""
    kind, _, rest = name.partition(":")
    if kind == "operator":
        return operators.find_overload(rest) if "." in rest.partition("::")[2] else operators.find_packet(rest)
    module, _, qualified = rest.partition(":")
    return operators.resolve(module, qualified)
