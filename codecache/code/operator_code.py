"""Digest a program's operators: the registrations of each that a compile runs.

`torch_compat.operators.registrations` collects them. Operators of torch are identified by name. Kernels that only
compute are left out: compiled code calls them.
"""

from __future__ import annotations

import os
from typing import Any

from fxpool.codecache.code.grammar import UnprovenError
from fxpool.codecache.code.source_files import digest_file
from fxpool.codecache.code.writer import Writer
from fxpool.torch_compat.operators import operators, pickled_definitions, registrations

__all__ = ["add", "parts"]


def add(proof: Writer, value: Any) -> None:
    """Add an operator: an overload, a packet, a higher-order operator or a `custom_op`. Raises UnprovenError."""
    operator = operators.operator_behind(value) or value
    if operators.is_higher_order(operator):
        if not operators.is_torchs_higher_order(operator):
            raise proof.refused(f"the higher-order operator {operators.higher_order_name(operator)}")
        proof.token("higher-order operator", operators.higher_order_name(operator))
        return
    if operators.is_overload(operator):
        name = operators.overload_name(operator)
    elif operators.is_packet(operator):
        name = operators.packet_name(operator)
    else:
        raise proof.refused(f"{value}, a namespace of operators")
    proof.token("operator", name)
    if operators.is_builtin(operator) or proof.met(operator):
        return
    for part, digest in parts(operator, proof.new()).items():
        proof.token(part, digest)


def parts(operator: Any, proof: Writer, *, after_autograd: bool = False) -> dict[str, str]:
    """Return digests of the program's registrations for an operator, by part.

    `proof` is a new one. `after_autograd`: only of the parts that graphs need which AOTAutograd has made.

    Raises UnprovenError: a part is outside the grammar, or code in C++ is traced.
    """
    name = operators.pretty_name(operator)
    try:
        registered = registrations.registration(operator)
    except registrations.NotFoundError as error:
        raise UnprovenError(str(error)) from error
    if not (registered.is_known or pickled_definitions.is_custom_op(operator)):
        raise UnprovenError(f"the operator {name}, whose registration has no file")
    if registered.traced_in_cpp and not after_autograd:
        raise UnprovenError(f"C++ code of the operator {name} for {', '.join(registered.traced_in_cpp)}")
    if registered.folds and not after_autograd:
        raise UnprovenError(f"the kernels of the operator {name}, which is tagged as pointwise: they may run")
    digests: dict[str, str] = {}
    # One proof of all: a backward reads attributes that the function for its context sets.
    for part, (value, traced_only) in sorted(registered.parts.items()):
        if not (after_autograd and traced_only):
            proof.token("part", part)
            proof.add(value, f"{part} of the operator {name}")
    if operators.is_packet(operator):
        proof.token("overloads", " ".join(operators.overload_names(operator)))
    digests["registrations"] = proof.digest()
    try:
        for path in registered.libraries:
            digests[f"library {os.path.basename(path)}"] = digest_file(path)
    except OSError as error:
        raise UnprovenError(f"the operator {name}: {error}") from error
    return digests
