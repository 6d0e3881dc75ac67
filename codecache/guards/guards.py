"""Guards as data: sympy expressions that can be saved, shown and evaluated, and are never parsed from text.

    encode(expr) ──▶ plain lists, numbers and strings ──▶ evaluate(data, {"s0": 4}) ──▶ True / False
                        │                                   (pure Python; imports neither sympy nor torch)
                        └──▶ decode(data) ──▶ the same expression, node for node

A node is `[kind, argument, ...]`; an integer or a boolean is encoded as itself. Only the kinds in the tables below can
be written, read and evaluated. Any other kind, or a node without a single right answer (a division by zero, a
comparison that depends on a float's last bit), raises `UnknownGuardError`. Callers treat that as a miss, so doubt costs
a compile and never causes a wrong hit.

sympy (0.4 s) is imported inside functions: a hit evaluates guards without it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import msgspec

from fxpool.codecache.guards.guard_arithmetic import (
    CONSTANT_VALUES,
    FUNCTIONS,
    LAZY,
    TORCH,
    UnknownGuardError,
    Value,
    decode_int,
    float_value,
    split,
    symbol_value,
    tidy,
    unknown,
)

if TYPE_CHECKING:
    import sympy

__all__ = [
    "UnknownGuardError",
    "decode",
    "digest",
    "encode",
    "evaluate",
    "evaluate_expression",
    "free_symbol_names",
    "render",
]

# ---------------------------------------------------------------- names of kinds

_RELATIONS = {
    "Equality": "==",
    "Unequality": "!=",
    "StrictLessThan": "<",
    "LessThan": "<=",
    "StrictGreaterThan": ">",
    "GreaterThan": ">=",
}
# Classes of sympy that may occur in a guard. Names of torch's classes have the prefix "torch.".
_SYMPY_KINDS = (
    "Add", "Mul", "Pow", "Max", "Min", "Abs", "floor", "ceiling", "Mod",
    *_RELATIONS,
    "And", "Or", "Not", "Xor", "ITE", "Piecewise", "ExprCondPair",
)  # fmt: skip
_INT64 = 1 << 63
#: Assumptions of the symbols that torch and Inductor create. Each set implies all other assumptions of its symbol.
_COMMON_ASSUMPTIONS: tuple[dict[str, bool], ...] = (
    {"integer": True, "positive": True},
    {"integer": True},
    {"integer": True, "nonnegative": True},
    {"real": True},
    {"real": True, "positive": True},
    {},
)


# ---------------------------------------------------------------- sympy to data and back


def encode(expr: sympy.Basic) -> Any:
    """Return `expr` as plain data that msgpack and JSON can carry.

    Raises UnknownGuardError for any class that is not in the allow-list, and for an expression that `decode` would not
    rebuild unchanged (sympy rewrites some expressions on construction).
    """
    try:
        data = _encode(expr)
        same = decode(data) == expr
    except RecursionError:
        raise UnknownGuardError("the guard is nested too deeply") from None
    if not same:
        raise UnknownGuardError(f"sympy does not rebuild {expr} unchanged")
    return data


def _encode(expr: Any) -> Any:
    import sympy

    if isinstance(expr, bool):
        return expr
    if expr is sympy.true or expr is sympy.false:
        return expr is sympy.true
    if isinstance(expr, (int, sympy.Integer)):
        return _encode_int(int(expr))
    for name, constant in _constants().items():
        if expr is constant:
            return ["constant", name]
    if type(expr) is sympy.Symbol:
        return ["symbol", expr.name, *_encode_assumptions(expr)]
    if isinstance(expr, sympy.Rational):
        return ["rational", _encode_int(expr.p), _encode_int(expr.q)]
    if type(expr) is sympy.Float:
        sign, mantissa, exponent, _ = expr._mpf_
        return ["float", int(sign), _encode_int(int(mantissa)), int(exponent), int(expr._prec)]
    kind = _kinds_by_class().get(type(expr))
    if kind is None:
        raise UnknownGuardError(f"no way to save {type(expr).__module__}.{type(expr).__qualname__} in a guard")
    return [kind, *(_encode(arg) for arg in expr.args)]


def _encode_int(value: int) -> Any:
    return value if -_INT64 <= value < _INT64 else ["big", hex(value)]


def _encode_assumptions(symbol: sympy.Symbol) -> list[str]:
    import sympy

    for assumptions in _COMMON_ASSUMPTIONS:
        if sympy.Symbol(symbol.name, **assumptions) == symbol:
            return sorted(assumptions)
    return sorted(name if holds else f"!{name}" for name, holds in symbol.assumptions0.items())


def decode(data: Any, symbols: Mapping[str, sympy.Symbol] | None = None) -> sympy.Basic:
    """Rebuild the expression passed to `encode`, node for node, without simplification or evaluation.

    `symbols` replace the saved symbols by name, and must include every name. Without `symbols`, new symbols are created
    with the saved names and assumptions. Raises UnknownGuardError for data that `encode` could not have written.
    """
    try:
        return _decode(data, symbols)
    except UnknownGuardError:
        raise
    except RecursionError:
        raise UnknownGuardError("the guard is nested too deeply") from None
    except Exception as error:  # sympy and torch raise errors of many types for invalid arguments
        raise UnknownGuardError(f"malformed guard: {error}") from error


def _decode(data: Any, symbols: Mapping[str, sympy.Symbol] | None) -> Any:
    import sympy

    if isinstance(data, bool):
        return sympy.true if data else sympy.false
    if isinstance(data, int):
        return sympy.Integer(data)
    kind, args = split(data)
    if kind == "big":
        return sympy.Integer(decode_int(data))
    if kind == "constant":
        return _constants()[args[0]]
    if kind == "symbol":
        if symbols is None:
            return sympy.Symbol(args[0], **{word.lstrip("!"): not word.startswith("!") for word in args[1:]})
        if args[0] not in symbols:
            raise UnknownGuardError(f"unknown symbol {args[0]}")
        return symbols[args[0]]
    if kind == "rational":
        return sympy.Rational(decode_int(args[0]), decode_int(args[1]))
    if kind == "float":
        sign, mantissa, exponent, precision = args
        mantissa = decode_int(mantissa)
        return sympy.Float._new((sign, mantissa, exponent, mantissa.bit_length()), precision, zero=False)
    cls = _classes_by_kind().get(kind)
    if cls is None:
        raise UnknownGuardError(f"unknown kind of node {kind!r}")
    nodes = [_decode(arg, symbols) for arg in args]
    if kind == "ExprCondPair":
        return cls(*nodes)
    return cls(*nodes, evaluate=False)


def _constants() -> dict[str, sympy.Basic]:
    import sympy

    from fxpool.torch_compat.dynamo.sympy_functions import integer_infinities

    return {"oo": sympy.oo, "-oo": -sympy.oo, **integer_infinities()}


def _classes_by_kind() -> dict[str, Any]:
    if not _classes:
        import sympy
        from sympy.functions.elementary.piecewise import ExprCondPair

        from fxpool.torch_compat.dynamo.sympy_functions import function_classes

        for name in _SYMPY_KINDS:
            _classes[name] = ExprCondPair if name == "ExprCondPair" else getattr(sympy, name)
        # Only classes that can be evaluated, since an entry with any other guard could never be a hit.
        for name, cls in function_classes().items():
            if TORCH + name in FUNCTIONS or TORCH + name in LAZY:
                _classes[TORCH + name] = cls
    return _classes


def _kinds_by_class() -> dict[Any, str]:
    if not _kinds:
        _kinds.update({cls: kind for kind, cls in _classes_by_kind().items()})
    return _kinds


_classes: dict[str, Any] = {}
_kinds: dict[Any, str] = {}


# ---------------------------------------------------------------- without sympy


def free_symbol_names(data: Any) -> set[str]:
    """Return the names of the symbols in an encoded guard. Raises UnknownGuardError if it is malformed."""
    if isinstance(data, (bool, int)):
        return set()
    kind, args = split(data)
    if kind == "symbol":
        return {_symbol_name(args)}
    if kind in ("big", "constant", "float", "rational"):
        return set()
    return set().union(*(free_symbol_names(arg) for arg in args))


def _symbol_name(args: list[Any]) -> str:
    if not args or not all(isinstance(arg, str) for arg in args):
        raise UnknownGuardError("a symbol without a name")
    return str(args[0])


def digest(guards: Iterable[Any]) -> str:
    """Return the sha256 of encoded guards. Order and duplicates have no effect, since all guards must hold."""
    encoded = sorted({msgspec.msgpack.encode(guard) for guard in guards})
    whole = hashlib.sha256(b"fxpool guards")
    for one in encoded:
        whole.update(len(one).to_bytes(8, "big") + one)
    return whole.hexdigest()


_INFIX = {**_RELATIONS, "Add": "+", "Mul": "*", "Pow": "**", "And": "and", "Or": "or", "Xor": "^", "Mod": "%"}
_INFIX |= {TORCH + name: sign for name, sign in {
    "FloorDiv": "//", "CleanDiv": "//", "IntTrueDiv": "/", "FloatTrueDiv": "/", "Mod": "%", "PythonMod": "%",
    "PowByNatural": "**", "FloatPow": "**", "LShift": "<<", "RShift": ">>",
    "BitwiseFn_bitwise_and": "&", "BitwiseFn_bitwise_or": "|", "BitwiseFn_bitwise_xor": "^",
}.items()}  # fmt: skip


_PRECEDENCE = {
    sign: strength
    for strength, signs in enumerate(
        ("or", "and", "== != < <= > >=", "|", "^", "&", "<< >>", "+", "* / // %", "**"), start=1
    )
    for sign in signs.split()
}
_ATOM = len(_PRECEDENCE)


def render(data: Any) -> str:
    """Return an encoded guard as readable text, such as `1 + s0 <= 8`. Raises UnknownGuardError if malformed."""
    try:
        text, _ = _render(data)
    except RecursionError:
        raise UnknownGuardError("the guard is nested too deeply") from None
    except (ValueError, TypeError, IndexError, ArithmeticError) as error:
        raise UnknownGuardError(f"malformed guard: {error}") from error
    return text


def _render(data: Any) -> tuple[str, int]:
    """Return the text of a node, and the precedence of its outermost operator."""
    if isinstance(data, (bool, int)):
        return str(data), _PRECEDENCE["*"] if data < 0 else _ATOM
    kind, args = split(data)
    if kind == "symbol":
        return _symbol_name(args), _ATOM
    if kind == "constant":
        return str(args[0]), _ATOM
    if kind == "big":
        return hex(decode_int(data)), _ATOM
    if kind == "rational":
        return f"{decode_int(args[0])}/{decode_int(args[1])}", _PRECEDENCE["/"]
    if kind == "float":
        return _render_float(args), _ATOM
    parts = [_render(arg) for arg in args]
    if kind in _INFIX and len(parts) > 1:
        sign = _INFIX[kind]
        own = _PRECEDENCE[sign]
        return f" {sign} ".join(text if binds > own else f"({text})" for text, binds in parts), own
    name = kind.removeprefix(TORCH).removeprefix("OpaqueUnaryFn_").lower()
    return f"{name}({', '.join(text for text, _ in parts)})", _ATOM


def _render_float(args: list[Any]) -> str:
    try:
        return repr(float_value(args, exact=False))
    except (UnknownGuardError, OverflowError):  # sympy's floats have no upper limit
        sign, mantissa, exponent, _ = args
        return f"{'-' if sign else ''}{hex(decode_int(mantissa))}p{int(exponent)}"


# ---------------------------------------------------------------- evaluation


def evaluate(data: Any, values: Mapping[str, int | float | bool]) -> bool:
    """Return whether an encoded guard holds for the values of its symbols.

    Raises UnknownGuardError if there is no reliable answer: a symbol has no value or a value that contradicts its
    assumptions, a kind is unknown, a division by zero or an overflow occurs, or the result is not a boolean.
    """
    result = evaluate_expression(data, values)
    if not isinstance(result, bool):
        raise UnknownGuardError(f"the guard {render(data):.200} is {result!r}, which is neither true nor false")
    return result


def evaluate_expression(data: Any, values: Mapping[str, int | float | bool]) -> Value:
    """Return the value of an encoded expression, exact where sympy is (int, Fraction). Raises UnknownGuardError."""
    try:
        return _evaluate(data, values)
    except UnknownGuardError:
        raise
    except RecursionError:
        raise UnknownGuardError("the guard is nested too deeply") from None
    except (ArithmeticError, ValueError, TypeError, IndexError) as error:
        raise UnknownGuardError(f"{_shown(data)} cannot be evaluated: {error}") from error


def _shown(data: Any) -> str:
    try:
        return f"{render(data):.200}"
    except UnknownGuardError:
        return f"{data!r:.200}"


def _evaluate(data: Any, values: Mapping[str, int | float | bool]) -> Value:
    if isinstance(data, (bool, int)):
        return data
    kind, args = split(data)
    if kind == "symbol":
        return symbol_value(_symbol_name(args), args[1:], values)
    if kind == "big":
        return decode_int(data)
    if kind == "constant":
        return CONSTANT_VALUES[args[0]] if args[0] in CONSTANT_VALUES else unknown(f"the constant {args[0]!r}")
    if kind == "rational":
        return tidy(Fraction(decode_int(args[0]), decode_int(args[1])))
    if kind == "float":
        return float_value(args)
    if lazy := LAZY.get(kind):
        return lazy(args, lambda arg: _evaluate(arg, values))
    function = FUNCTIONS.get(kind)
    if function is None:
        return unknown(f"the kind of node {kind!r}")
    return tidy(function(*(_evaluate(arg, values) for arg in args)))
