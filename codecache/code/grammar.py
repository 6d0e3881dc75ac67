"""The grammar of code that a worker may run in the program's place, as tables.

A worker imports the program's modules in another process. It has the same code only if that is proven: each name that
the code reads leads to a value of these tables, each value is digested, and each instruction is one of those below.
Everything else is refused, and such code runs in the program's own process only (`proof`).

    values      of exactly these types: PLAIN, tuples and frozen dataclasses of plain values, TORCH_VALUES
    code        functions of Python whose globals, closures and defaults are accepted; nothing that holds state
    builtins    BUILTINS and EXCEPTIONS, if they are Python's own
    libraries   functions written in C of PURE_MODULES; functions of a package in NAMED_PACKAGES, told by its files;
                functions that a package in REGISTERING_PACKAGES registered with Inductor; functions and objects that
                a module of a package in CHANGING_PACKAGES put in the place of torch's
    torch       operators; functions of TORCH_MODULES; TORCH_NAMES (`torch_compat.operators.code_owner` tells torch's)
    attributes  of values that are not known before the code runs: tensors' and those in ATTRIBUTES, not DENIED
    bytecode    INSTRUCTIONS: without writes to globals or to cells of a closure, classes, imports of modules, sets
                (their order depends on the hash seed), coroutines

A value that could change while the digest stays (a list, an instance, a wrapper that holds something) is not in the
tables, nor is anything that reads the process: its environment, files, clocks, flags, ranks, random state.
"""

from __future__ import annotations

import builtins
import dataclasses
import re
import reprlib
import types
from typing import Any

import torch

__all__ = [
    "ATTRIBUTES", "BUILTINS", "CHANGING_PACKAGES", "DENIED", "EXCEPTIONS", "INSTRUCTIONS", "INTRINSICS",
    "NAMED_PACKAGES", "PLAIN", "PURE_MODULES", "REGISTERING_PACKAGES", "TORCH_CLASSES", "TORCH_MODULES", "TORCH_NAMES",
    "TORCH_OPERATORS_NOT", "TORCH_VALUES", "UnprovenError", "is_builtin", "is_record", "names_device_by_index",
]  # fmt: skip


class UnprovenError(ValueError):
    """Code is outside the grammar; `part` names it, and the references that lead to it."""

    def __init__(self, part: str) -> None:
        self.part = part
        super().__init__(f"not proven to be the same in another process: {part}")


#: Types of values that are digested by value. Exactly these: a subclass may do anything.
PLAIN = (type(None), bool, int, float, complex, str, bytes, type(Ellipsis), type(NotImplemented))

#: Types of torch whose objects are values, digested as text.
TORCH_VALUES = ("dtype", "device", "layout", "memory_format")

#: Builtins that compute from their arguments only. Not here: `id`, `hash`, `repr` and `str` (addresses, the hash seed),
#: `set` (order), `getattr`, `type`, `super`, `globals`, `open`, `print` and whatever else reaches other state.
BUILTINS = frozenset(
    ("abs", "all", "any", "bool", "complex", "dict", "divmod", "enumerate", "filter", "float", "int", "isinstance",
     "iter", "len", "list", "map", "max", "min", "next", "pow", "range", "reversed", "round", "slice", "sorted", "sum",
     "tuple", "zip")
)  # fmt: skip
EXCEPTIONS = frozenset(
    ("ArithmeticError", "AssertionError", "AttributeError", "Exception", "IndexError", "KeyError", "LookupError",
     "NotImplementedError", "OverflowError", "RuntimeError", "StopIteration", "TypeError", "ValueError",
     "ZeroDivisionError")
)  # fmt: skip

#: Modules of the standard library whose functions in C compute from their arguments only.
PURE_MODULES = frozenset(("math", "cmath", "_operator"))

#: Packages whose functions, which Dynamo leaves in graphs, compute from their arguments only. Digested by all their
#: sources, as their functions refer to tables of objects.
NAMED_PACKAGES = frozenset(("einops",))

#: Packages that register passes and patterns with Inductor while they are imported (`packages`).
REGISTERING_PACKAGES = frozenset(("torchao",))

#: Packages that replace parts of torch while a module of theirs is imported (`packages`).
CHANGING_PACKAGES = frozenset(("vllm",))

#: Modules of torch whose functions compute from tensors and plain arguments.
TORCH_MODULES = frozenset(
    ("torch.functional", "torch.nn.functional", "torch._refs", "torch._refs.nn.functional", "torch._refs.special",
     "torch._refs.linalg", "torch._refs.fft", "torch._prims_common", "torch._prims_common.wrappers")
)  # fmt: skip

#: Other functions of torch, by module and name. Those without arguments return state that a worker enters and that is
#: part of each key (`global_state`).
TORCH_NAMES = frozenset(
    ("torch._check", "torch._check_index", "torch._check_is_size", "torch._check_not_implemented",
     "torch._check_tensor_all", "torch._check_type", "torch._check_value", "torch._check_with", "torch.is_tensor",
     "torch.is_storage", "torch.sym_float", "torch.sym_int", "torch.sym_ite", "torch.sym_max", "torch.sym_min",
     "torch.sym_not", "torch.sym_sqrt", "torch.sym_sum", "torch.compiler.is_compiling", "torch.get_default_dtype",
     "torch.is_grad_enabled", "torch.is_autocast_enabled", "torch.get_autocast_dtype", "torch.library.get_ctx",
     "torch._library.fake_impl.get_ctx")
)  # fmt: skip

#: Classes of torch, to check types and to make objects of within the code.
TORCH_CLASSES = frozenset(
    ("Tensor", "Size", "SymBool", "SymFloat", "SymInt", "autocast", "dtype", "enable_grad", "finfo", "iinfo",
     "layout", "memory_format", "nn.Parameter", "no_grad")
)  # fmt: skip

#: Functions of torch's namespace of operators that read something else than their arguments.
TORCH_OPERATORS_NOT = frozenset(("from_file", "get_device", "record_function", "cudnn_is_acceptable", "set_data"))

#: Attributes of tensors that show more than a graph's key has: memory, the autograd graph, other Python objects.
DENIED = frozenset(
    ("data_ptr", "get_device", "grad", "grad_dtype", "grad_fn", "is_pinned", "is_shared", "name", "names", "numpy",
     "output_nr", "pin_memory", "record_stream", "register_hook", "register_post_accumulate_grad_hook", "retain_grad",
     "retains_grad", "set_", "share_memory_", "storage", "storage_type", "tolist", "typed_storage", "untyped_storage",
     "volatile", "apply_", "map_", "map2_", "backward", "index")
)  # fmt: skip

#: Attributes besides those of tensors: of contexts of autograd and fake rules, of plain values, of dtypes.
ATTRIBUTES = frozenset(
    ("saved_tensors", "save_for_backward", "needs_input_grad", "mark_dirty", "mark_non_differentiable",
     "set_materialize_grads", "new_dynamic_size", "create_unbacked_symint",
     "append", "extend", "insert", "pop", "remove", "reverse", "sort", "copy", "items", "keys", "values", "get",
     "update", "setdefault", "start", "stop", "step", "join", "split", "startswith", "endswith", "strip", "lower",
     "upper", "replace", "count", "is_integer", "real", "imag", "conjugate", "bit_length",
     "itemsize", "is_floating_point", "is_complex", "is_signed", "to_complex", "to_real", "type", "bits", "eps", "max",
     "min", "tiny", "smallest_normal", "resolution", "default")
)  # fmt: skip

# Instructions of CPython 3.10 to 3.14.
_INSTRUCTIONS = """
BEFORE_WITH BINARY_ADD BINARY_AND BINARY_FLOOR_DIVIDE BINARY_LSHIFT BINARY_MATRIX_MULTIPLY BINARY_MODULO
BINARY_MULTIPLY BINARY_OP BINARY_OR BINARY_POWER BINARY_RSHIFT BINARY_SLICE BINARY_SUBSCR BINARY_SUBTRACT
BINARY_TRUE_DIVIDE BINARY_XOR BUILD_CONST_KEY_MAP BUILD_LIST BUILD_MAP BUILD_SLICE BUILD_STRING BUILD_TUPLE CACHE CALL
CALL_FUNCTION CALL_FUNCTION_EX CALL_FUNCTION_KW CALL_INTRINSIC_1 CALL_KW CALL_METHOD CHECK_EXC_MATCH COMPARE_OP
CONTAINS_OP CONVERT_VALUE COPY COPY_FREE_VARS DELETE_FAST DELETE_SUBSCR DICT_MERGE DICT_UPDATE DUP_TOP DUP_TOP_TWO
END_FOR END_SEND EXTENDED_ARG FORMAT_SIMPLE FORMAT_VALUE FORMAT_WITH_SPEC FOR_ITER GEN_START GET_ITER GET_LEN
INPLACE_ADD INPLACE_AND INPLACE_FLOOR_DIVIDE INPLACE_LSHIFT INPLACE_MATRIX_MULTIPLY INPLACE_MODULO INPLACE_MULTIPLY
INPLACE_OR INPLACE_POWER INPLACE_RSHIFT INPLACE_SUBTRACT INPLACE_TRUE_DIVIDE INPLACE_XOR INTERPRETER_EXIT IS_OP
JUMP_ABSOLUTE JUMP_BACKWARD JUMP_BACKWARD_NO_INTERRUPT JUMP_FORWARD JUMP_IF_FALSE_OR_POP JUMP_IF_NOT_EXC_MATCH
JUMP_IF_TRUE_OR_POP KW_NAMES LIST_APPEND LIST_EXTEND LIST_TO_TUPLE LOAD_ASSERTION_ERROR LOAD_ATTR LOAD_CLOSURE
LOAD_COMMON_CONSTANT LOAD_CONST LOAD_CONST_IMMORTAL LOAD_DEREF LOAD_FAST LOAD_FAST_AND_CLEAR LOAD_FAST_BORROW
LOAD_FAST_BORROW_LOAD_FAST_BORROW LOAD_FAST_CHECK LOAD_FAST_LOAD_FAST LOAD_GLOBAL LOAD_METHOD LOAD_SMALL_INT
LOAD_SPECIAL MAKE_CELL MAKE_FUNCTION MAP_ADD NOP NOT_TAKEN POP_BLOCK POP_EXCEPT POP_ITER POP_JUMP_BACKWARD_IF_FALSE
POP_JUMP_BACKWARD_IF_NONE POP_JUMP_BACKWARD_IF_NOT_NONE POP_JUMP_BACKWARD_IF_TRUE POP_JUMP_FORWARD_IF_FALSE
POP_JUMP_FORWARD_IF_NONE POP_JUMP_FORWARD_IF_NOT_NONE POP_JUMP_FORWARD_IF_TRUE POP_JUMP_IF_FALSE POP_JUMP_IF_NONE
POP_JUMP_IF_NOT_NONE POP_JUMP_IF_TRUE POP_TOP PRECALL PUSH_EXC_INFO PUSH_NULL RAISE_VARARGS RERAISE RESUME
RETURN_CONST RETURN_GENERATOR RETURN_VALUE ROT_FOUR ROT_N ROT_THREE ROT_TWO SETUP_FINALLY SETUP_WITH
SET_FUNCTION_ATTRIBUTE STORE_ATTR STORE_DEREF STORE_FAST STORE_FAST_LOAD_FAST STORE_FAST_MAYBE_NULL
STORE_FAST_STORE_FAST STORE_SLICE STORE_SUBSCR SWAP TO_BOOL UNARY_INVERT UNARY_NEGATIVE UNARY_NOT UNARY_POSITIVE
UNPACK_EX UNPACK_SEQUENCE WITH_EXCEPT_START YIELD_VALUE IMPORT_NAME IMPORT_FROM
"""
INSTRUCTIONS = frozenset(_INSTRUCTIONS.split())
#: Arguments of CALL_INTRINSIC_1: StopIteration to RuntimeError, unary plus, list to tuple.
INTRINSICS = frozenset((3, 5, 6))


def is_builtin(name: str, value: Any) -> bool:
    """Return whether a value is Python's own builtin, and one of the tables'."""
    if type(value) is types.BuiltinFunctionType:
        return value.__self__ is builtins and value.__name__ == name and name in BUILTINS
    return type(value) is type and not value.__flags__ & _HEAP_TYPE and value.__name__ in BUILTINS | EXCEPTIONS


def names_device_by_index(value: Any) -> bool:
    """Return whether a value names a device by its index: a worker numbers the devices of a graph itself."""
    if type(value) is torch.device:
        return value.index is not None
    return type(value) is str and _DEVICE.fullmatch(value) is not None


_DEVICE = re.compile(r"[a-z]+:[0-9]+")
_HEAP_TYPE = 1 << 9  # Py_TPFLAGS_HEAPTYPE: made by a class statement


def is_record(cls: type) -> bool:
    """Return whether a class is a frozen dataclass without any methods: its objects are their fields."""
    parameters = vars(cls).get("__dataclass_params__")
    if type(cls) is not type or cls.__mro__ != (cls, object) or not getattr(parameters, "frozen", False):
        return False
    fields = vars(cls).get("__dataclass_fields__", {})
    return all(
        name in fields or (name in _OF_A_DATACLASS and _is_generated(value)) for name, value in vars(cls).items()
    )


# Names that a class statement and `dataclasses` put into a class. Methods have to be generated (`_is_generated`).
_OF_A_DATACLASS = frozenset(
    ("__module__", "__qualname__", "__doc__", "__dict__", "__weakref__", "__slots__", "__annotations__",
     "__annotate__", "__annotate_func__", "__annotations_cache__", "__static_attributes__", "__firstlineno__",
     "__match_args__", "__dataclass_fields__", "__dataclass_params__", "__init__", "__repr__", "__eq__", "__hash__",
     "__setattr__", "__delattr__", "__getstate__", "__setstate__", "__replace__", "__lt__", "__le__", "__gt__",
     "__ge__")
)  # fmt: skip


def _is_generated(value: Any) -> bool:
    if type(value) is not types.FunctionType:
        return True
    code = value.__code__
    if code.co_filename == "<string>":
        # Not the code of `python -c`. Python 3.10 has no such names, and only there each method is a text by itself.
        of = getattr(code, "co_qualname", "" if code.co_firstlineno != 2 else _MAKER)
        return of.startswith(_MAKER)
    if code.co_filename == reprlib.__file__:  # Python 3.13 wraps the generated `__repr__` with it
        return all(_is_generated(cell.cell_contents) for cell in value.__closure__ or ())
    return code.co_filename == dataclasses.__file__


# `dataclasses` writes a function around a class's methods, and runs it.
_MAKER = "__create_fn__.<locals>."
