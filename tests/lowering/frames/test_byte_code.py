"""Byte code that Dynamo wrote is plain data in a record, and code again in another process."""

from __future__ import annotations

import types

import pytest
from torch._dynamo.codegen import PyCodegen

from fxpool.frames import byte_code
from fxpool.frames.code_digests import code_digest
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
