"""Byte code that Dynamo wrote is plain data in a record, and code again in another process."""

from __future__ import annotations

import types
from typing import Any

import pytest
from torch._dynamo.codegen import PyCodegen

from fxpool.frames import byte_code
from fxpool.frames.code_digests import code_digest, lists_attributes
from fxpool.torch_compat.frames import plain_sources


def with_constant(value: object) -> types.CodeType:
    code = (lambda: 12345).__code__
    return code.replace(co_consts=tuple(value if constant == 12345 else constant for constant in code.co_consts))


def result(code: types.CodeType) -> object:
    return types.FunctionType(code, {})()


def test_a_helper_of_dynamos_is_stored() -> None:
    helper = PyCodegen.pop_null(object.__new__(PyCodegen))[0].argval  # takes a null off the stack
    code = with_constant(helper)
    loaded = byte_code.load(byte_code.dump(code))
    stored = result(loaded)
    assert stored is not helper
    assert isinstance(stored, types.FunctionType)
    assert stored() is None
    assert stored.__globals__ is helper.__globals__
    assert code_digest(loaded) == code_digest(code)


def test_a_programs_function_is_not() -> None:
    with pytest.raises(plain_sources.NotPlainError, match=r"builtins\.function"):
        byte_code.dump(with_constant(result))


def test_globals_are_those_of_the_module_in_this_process() -> None:
    stored = byte_code.dump(with_constant(globals()))
    assert result(byte_code.load(stored, lambda name: {"of": name})) == {"of": __name__}
    assert result(byte_code.load(stored)) == f"globals of {__name__}"
    assert code_digest(byte_code.load(stored)) == code_digest(byte_code.load(stored))


def test_a_copy_of_globals_is_not_stored() -> None:
    with pytest.raises(plain_sources.NotPlainError):
        byte_code.dump(with_constant({**globals()}))


LOOKS_UP: list[Any] = [
    lambda one: one.__dict__.get("a"),
    lambda one: "a" in one.__dict__,
    lambda one: one.__getattribute__("__dict__").get("a"),
    lambda one: [name for name in one if name in one.__dict__],
]
LISTS: list[Any] = [
    lambda one: list(one.__dict__),
    lambda one: {**one.__dict__},
    lambda one: [len(name) for name in one.__dict__],
    lambda one: (one.__dict__.get("a"), one.__dict__.items()),
    lambda one: getattr(one, "__dict__"),  # noqa: B009
    lambda one: one.__dict__,
    lambda one: object.__getattribute__(one, "__dict__"),
    lambda one: one("__dict__").get("a"),
    lambda one: [getattr(one, name) for name in ("__dict__", "a")],
    lambda one: one(__dict__=1),
    lambda one: lambda: [*one.__dict__],
]


@pytest.mark.parametrize("function", LOOKS_UP)
def test_the_order_of_attributes_does_not_count_for_code_that_looks_one_up(function: types.FunctionType) -> None:
    assert not lists_attributes([function.__code__])


@pytest.mark.parametrize("function", LISTS)
def test_the_order_of_attributes_counts_for_other_code(function: types.FunctionType) -> None:
    assert lists_attributes([function.__code__])
