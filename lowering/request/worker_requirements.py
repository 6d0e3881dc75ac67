"""The modules, libraries and definitions that another process needs before it can rebuild a graph."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from fxpool.codecache.code import packages
from fxpool.codecache.graph import target_names
from fxpool.errors import CannotTravelError
from fxpool.torch_compat.operators import pickled_definitions, registrations

__all__ = ["Needed", "needed"]


class Needed(NamedTuple):
    """Modules to import, libraries to load, definitions of operators that are sent by value; `stays`: why a graph
    cannot be rebuilt in another process."""

    modules: Sequence[str] = ()
    libraries: Sequence[str] = ()
    operators: Sequence[bytes] = ()
    stays: CannotTravelError | None = None


def needed(dependencies: Mapping[str, Any]) -> Needed:
    """Return the needs of a graph with these dependencies in another process."""
    modules: set[str] = set()
    compiled: set[str] = set()
    defined: list[bytes] = []
    for name, target in sorted(dependencies.items()):
        if name.startswith("kernel:"):
            modules.add(name.split(":")[1])
            continue
        if not name.startswith("operator:"):
            modules.add(target_names.name_of(target)[0])
            continue
        try:
            registration = registrations.registration(target)
        except registrations.NotFoundError as error:
            return Needed(stays=CannotTravelError("operator_of_unknown_source", str(error)))
        of_files = [registrations.module_of_file(path) for path in registration.files]
        imported = pickled_definitions.is_made_by_import(target)
        if None in of_files or not imported:
            definition = pickled_definitions.operator_as_bytes(target)
            if definition is not None:
                defined.append(definition)
                continue
        if not imported:
            detail = f"{registration.name} is defined in the main script or a function, with values that cannot be sent"
            return Needed(stays=CannotTravelError("operator_in_main", detail))
        compiled.update(registration.libraries)
        for path, module in zip(registration.files, of_files, strict=True):
            if module is None:
                detail = f"{registration.name} is registered in {path}"
                return Needed(stays=CannotTravelError("operator_in_main", detail))
            modules.add(module)
        if registration.home is not None:
            modules.add(registration.home)
        elif not registration.files and not registration.libraries:
            return Needed(stays=CannotTravelError("operator_of_unknown_source", registration.name))
    return Needed([*packages.modules_that_register(), *sorted(modules)], sorted(compiled), defined)
