"""The program's code that a graph is compiled with, by digest: in the key, and compared in the worker.

    what a graph names        functions, operators and kernels from outside torch, with all they lead to
    what is registered        kernels for torch's own operators, and what Inductor is told to do otherwise
    what was replaced         torch's functions and methods that stand under other names, or are a program's

A worker imports a program's modules afresh. What it gets is the program's code only if nothing was different: the
text of a file, the environment when it was imported, what the program put into a module since. So digests travel with
a request, are made again there, and a compile whose code differs is made in the program's own process.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from fxpool.codecache import sources, torch_objects
from fxpool.codecache.digester import Digester
from fxpool.codecache.undigestable import UndigestableError
from fxpool.torch_compat.operators import inductor_registrations, operators, registrations, replaced
from fxpool.torch_compat.operators.otherwise import Otherwise

__all__ = ["ProgramCode", "SentCode", "of"]

_REGISTERED = "registered: "
_KERNEL = "kernel:"
_RENAMED = "torch's functions under other names than their own"
#: what a process with other tables has among its digests; tables are compared by what they mean
TABLES = "registered: tables of lowerings and decompositions"


@dataclasses.dataclass(frozen=True)
class ProgramCode:
    """Digests by name, and the variables of the environment that the code reads (None: not set)."""

    digests: dict[str, str]
    environment: dict[str, str | None]

    def traced(self) -> dict[str, str]:
        """Those of code that compiling runs. The rest is called by compiled code, in the program's process.

        Triton kernels are compared where a graph is rebuilt.
        """
        return {
            name: digest
            for name, digest in self.digests.items()
            if torch_objects.LATER not in name and not name.startswith(_KERNEL)
        }


def of(dependencies: Mapping[str, Any], *, after_autograd: bool = False) -> ProgramCode:
    """The code behind what a graph names (see `GraphEncoder.dependencies`), and what is registered in this process.

    `after_autograd`: AOTAutograd made the graph, and does not ask again for backwards and the like.

    Raises:
        UndigestableError: code has no digest, so that nobody can say whether it is the same elsewhere.
    """
    digests: dict[str, str] = {}
    environment: dict[str, str | None] = {}

    def examine(name: str, value: Any) -> None:
        try:
            examined = sources.examine(value)
        except UndigestableError as error:
            raise UndigestableError(f"{name}: {error.what}") from error
        digests[name] = examined.digest
        environment.update(examined.environment)

    for name, target in sorted(dependencies.items()):
        if operators.is_overload(target) or operators.is_packet(target):
            digester = Digester()
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


@dataclasses.dataclass(frozen=True)
class SentCode:
    """What travels of it: digests of traced code, names of the graph's dependencies, and changed tables.

    `configured` are digests of what options hold besides plain values, which comes to a worker by name.
    """

    digests: Mapping[str, str]
    dependencies: Sequence[str]
    tables: inductor_registrations.Tables | None
    configured: Mapping[str, str]
    after_autograd: bool

    @staticmethod
    def of(
        code: ProgramCode, dependencies: Iterable[str], configured: Mapping[str, str], *, after_autograd: bool = False
    ) -> SentCode:
        names = sorted(name for name in dependencies if not name.startswith(_KERNEL))
        return SentCode(code.traced(), names, inductor_registrations.tables(), configured, after_autograd)

    def other_configured(self, here: Mapping[str, str]) -> str:
        """Which configured code is another in a process where the request's options are in force; empty if none is."""
        return next((name for name, digest in sorted(self.configured.items()) if here.get(name) != digest), "")

    def difference(self) -> tuple[str, list[Otherwise]]:
        """Which piece of code is another in this process (empty if none is), and operators for which something else is
        registered: a compile that comes to none of these is the same here."""
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
    """What a dependency's name leads to in this process. Raises ImportError, AttributeError."""
    kind, _, rest = name.partition(":")
    if kind == "operator":
        return operators.find_overload(rest) if "." in rest.partition("::")[2] else operators.find_packet(rest)
    module, _, qualified = rest.partition(":")
    return operators.resolve(module, qualified)
