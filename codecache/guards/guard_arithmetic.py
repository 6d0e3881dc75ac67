"""Evaluate the nodes of guards on plain numbers, with the arithmetic of sympy and of torch's functions.

Results are exact where sympy is exact (int, Fraction), and doubles where it uses floats. Booleans are not numbers. If
sympy, torch's printed guards and Python disagree, or an expression has no value, `UnknownGuardError` is raised, which
makes the lookup a miss.

    FUNCTIONS   kind -> function of evaluated arguments
    LAZY        kind -> function of unevaluated arguments and the evaluator
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any, TypeAlias

#: The value of an argument. Infinities are floats; a Fraction never has an integer value.
Number: TypeAlias = int | float | Fraction
Value: TypeAlias = bool | int | float | Fraction

#: Prefix of the names of torch's classes, since sympy has classes with the same names.
TORCH = "torch."


class UnknownGuardError(ValueError):
    """A guard that can't be saved, read or evaluated. Callers treat it as a miss."""


def split(data: Any) -> tuple[str, list[Any]]:
    """Return the kind and the arguments of a node. Raises UnknownGuardError."""
    if not isinstance(data, (list, tuple)) or not data or not isinstance(data[0], str):
        raise UnknownGuardError(f"{data!r:.80} is not a node of a guard")
    return data[0], list(data[1:])


def decode_int(data: Any) -> int:
    """Return an encoded integer, also if it is too large for msgpack. Raises UnknownGuardError."""
    if isinstance(data, int) and not isinstance(data, bool):
        return data
    if isinstance(data, (list, tuple)) and len(data) == 2 and data[0] == "big" and isinstance(data[1], str):
        try:
            return int(data[1], 16)
        except ValueError:
            pass
    raise UnknownGuardError(f"{data!r:.80} is not an integer")


def unknown(value: str) -> Any:
    """Raise UnknownGuardError. The return type lets callers write `return unknown(...)`."""
    raise UnknownGuardError(f"no way to evaluate {value}")


def tidy(value: Any) -> Value:
    """Return `value`, converted to int if it is a whole Fraction. Raises UnknownGuardError for NaN and complex."""
    if isinstance(value, float) and math.isnan(value):
        return unknown("not a number")
    if isinstance(value, Fraction) and value.denominator == 1:
        return value.numerator
    if isinstance(value, complex):
        return unknown("a complex number")
    return value


CONSTANT_VALUES: dict[Any, float] = {"oo": math.inf, "int_oo": math.inf, "-oo": -math.inf, "-int_oo": -math.inf}

_ASSUMPTION_CHECKS: dict[str, Callable[[Any], bool]] = {
    "integer": lambda value: isinstance(value, int),
    "positive": lambda value: value > 0,
    "nonnegative": lambda value: value >= 0,
    "negative": lambda value: value < 0,
    "nonpositive": lambda value: value <= 0,
    "nonzero": lambda value: value != 0,
    "zero": lambda value: value == 0,
    "even": lambda value: isinstance(value, int) and value % 2 == 0,
    "odd": lambda value: isinstance(value, int) and value % 2 == 1,
}


def symbol_value(name: str, assumptions: list[str], values: Mapping[str, int | float | bool]) -> Value:
    """Return a symbol's value. Raises UnknownGuardError if it is missing or contradicts `assumptions`."""
    if name not in values:
        raise UnknownGuardError(f"no value for {name}")
    value = values[name]
    if not isinstance(value, (bool, int, float)):
        raise UnknownGuardError(f"the value of {name} is a {type(value).__name__}")
    # sympy used the symbols' assumptions to simplify the guard, so the guard has no meaning if they do not hold.
    for word in assumptions:
        check = _ASSUMPTION_CHECKS.get(word.lstrip("!"))
        if check is not None and check(value) is word.startswith("!"):
            raise UnknownGuardError(f"{name} = {value!r} contradicts its assumption {word!r}")
    return tidy(value)


def float_value(args: list[Any], *, exact: bool = True) -> float:
    """Return a saved float as a double. With `exact`, raise UnknownGuardError if the conversion loses precision."""
    sign, mantissa, exponent, _ = args
    mantissa = decode_int(mantissa)
    if abs(exponent) > 1100 or mantissa.bit_length() > 1000:  # out of range, and costly to compute
        raise UnknownGuardError("a float out of range")
    value = math.ldexp(mantissa, exponent)
    if exact and Fraction(value) != mantissa * Fraction(2) ** exponent:
        raise UnknownGuardError("a float with more than double precision")
    return -value if sign else value


def _number(value: Value) -> Number:
    # torch converts a SymBool to 0 or 1 in arithmetic.
    return int(value) if isinstance(value, bool) else value


def _whole(value: Value) -> int:
    if not isinstance(value, int):
        raise UnknownGuardError(f"expected an integer, got {value!r}")
    return int(value)


def _truth(value: Value) -> bool:
    if not isinstance(value, bool):
        raise UnknownGuardError(f"expected a bool, got {value!r}")
    return value


def _double(value: Value) -> float:
    """Convert to float. Refuse integers above 2**53, for which torch's functions and Python give different results."""
    if isinstance(value, int) and abs(value) > 1 << 53:
        raise UnknownGuardError(f"{value} does not fit into a float")
    return float(value)


def _add(*args: Value) -> Number:
    total: Number = 0
    for arg in args:
        total = total + _number(arg)
    return total


def _mul(*args: Value) -> Number:
    product: Number = 1
    for arg in args:
        product = product * _number(arg)
    return product


def _pow(base: Value, exponent: Value) -> Any:
    base, exponent = _number(base), _number(exponent)
    if math.isinf(base) or math.isinf(exponent):
        return unknown("a power of infinity")
    if isinstance(base, float) or isinstance(exponent, float):
        return float(base) ** float(exponent)
    if isinstance(exponent, Fraction):
        root = math.isqrt(base) if isinstance(base, int) and base >= 0 else 0
        if exponent == Fraction(1, 2) and root * root == base:
            return root
        return unknown("an irrational number")  # exact in sympy; a float could have a rounding error
    size = max(base.numerator.bit_length(), base.denominator.bit_length())
    if size * abs(exponent) > 1 << 14:
        return unknown("a very large power")
    return Fraction(base) ** exponent


def _natural_power(base: Value, exponent: Value) -> int:
    base, exponent = _whole(base), _whole(exponent)
    # torch turns values beyond 63 bits into an infinity.
    if exponent < 0 or (abs(base) > 1 and exponent > 63) or abs(power := base**exponent) > sys.maxsize:
        return unknown("a power outside 63 bits")
    return power


def _modulo(base: Value, divisor: Value) -> Number:
    base, divisor = _number(base), _number(divisor)
    if isinstance(base, float) or isinstance(divisor, float):
        return unknown("the remainder of a float")
    return base % divisor


def _generic_modulo(base: Value, divisor: Value) -> int:
    # torch's Mod is defined only for a nonnegative base and a positive divisor.
    if _whole(base) < 0 or _whole(divisor) < 1:
        raise UnknownGuardError(f"Mod of {base!r} and {divisor!r}")
    return _whole(base) % _whole(divisor)


def _true_quotient(base: Value, divisor: Value) -> float:
    if isinstance(base, int) and isinstance(divisor, int):
        return base / divisor  # correctly rounded, for integers of any size
    return _double(base) / _double(divisor)


def _to_whole(rounding: Callable[[float], int]) -> Callable[[Value], Number]:
    def convert(value: Value) -> Number:
        number = _double(_number(value))
        return number if math.isinf(number) else rounding(number)

    return convert


def _exact_rounding(rounding: Callable[[Any], int]) -> Callable[[Value], Number]:
    def convert(value: Value) -> Number:
        number = _number(value)
        return number if isinstance(number, int) or math.isinf(number) else rounding(number)

    return convert


def _opaque(name: str) -> Callable[[Value], float]:
    function: Callable[[float], float] = getattr(math, name)

    def apply(value: Value) -> float:
        number = _double(value)
        return unknown("a function of infinity") if math.isinf(number) else function(number)

    return apply


def _bitwise(on_bools: Callable[[bool, bool], bool], on_ints: Callable[[int, int], int]) -> Callable[..., Value]:
    def apply(left: Value, right: Value) -> Value:
        if isinstance(left, bool) and isinstance(right, bool):
            return on_bools(left, right)
        return on_ints(_whole(left), _whole(right))

    return apply


def _dense_indicator(*args: Value) -> int:
    """Return 1 if sizes (first half) and strides (second half) describe memory without overlaps and gaps, else 0."""
    half, odd = divmod(len(args), 2)
    if odd or not half:
        raise UnknownGuardError("sizes and strides differ in number")
    sizes, strides = [_whole(arg) for arg in args[:half]], [_whole(arg) for arg in args[half:]]
    if half == 1:
        return int(strides[0] == 1 or sizes[0] < 2)
    expected = 1
    for stride, size in sorted(zip(strides, sizes, strict=True), key=lambda pair: pair[0]):
        if size != 1:
            if stride != expected:
                return 0
            expected *= size
    return 1


def _order(left: Value, right: Value) -> int:
    """Return -1, 0 or 1. Refuse to compare booleans with numbers, or values that are equal only after rounding."""
    if isinstance(left, bool) or isinstance(right, bool):
        raise UnknownGuardError("a comparison of a bool with a number")
    order = (left > right) - (left < right)
    if order and isinstance(left, float) != isinstance(right, float) and float(left) == float(right):
        # sympy compares at the float's precision, Python exactly.
        raise UnknownGuardError(f"{left!r} and {right!r} differ by a rounding error")
    return order


def _equal(left: Value, right: Value) -> bool:
    if isinstance(left, bool) and isinstance(right, bool):
        return left is right
    return _order(left, right) == 0


def _extreme(largest: bool) -> Callable[..., Number]:
    def pick(*args: Value) -> Number:
        best = _number(args[0])
        for arg in args[1:]:
            number = _number(arg)
            if (_order(number, best) > 0) is largest and _order(number, best):
                best = number
        return best

    return pick


def _exclusive_or(*args: Value) -> bool:
    return sum(_truth(arg) for arg in args) % 2 == 1


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "Add": _add,
    "Mul": _mul,
    "Pow": _pow,
    "Max": _extreme(True),
    "Min": _extreme(False),
    "Abs": lambda value: abs(_number(value)),
    "floor": _exact_rounding(math.floor),
    "ceiling": _exact_rounding(math.ceil),
    "Mod": _modulo,
    "Equality": _equal,
    "Unequality": lambda left, right: not _equal(left, right),
    "StrictLessThan": lambda left, right: _order(left, right) < 0,
    "LessThan": lambda left, right: _order(left, right) <= 0,
    "StrictGreaterThan": lambda left, right: _order(left, right) > 0,
    "GreaterThan": lambda left, right: _order(left, right) >= 0,
    "Not": lambda value: not _truth(value),
    "Xor": _exclusive_or,
}
_TORCH_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "FloorDiv": lambda base, divisor: _whole(base) // _whole(divisor),
    "CleanDiv": lambda base, divisor: _whole(base) // _whole(divisor),
    "CeilDiv": lambda base, divisor: -(-_whole(base) // _whole(divisor)),
    "ModularIndexing": lambda base, divisor, modulus: _whole(base) // _whole(divisor) % _whole(modulus),
    "PythonMod": lambda base, divisor: _whole(base) % _whole(divisor),
    "Mod": _generic_modulo,
    "LShift": lambda base, shift: _whole(base) * _natural_power(2, shift),
    "RShift": lambda base, shift: _whole(base) // _natural_power(2, shift),
    "PowByNatural": _natural_power,
    "FloatPow": lambda base, exponent: _double(base) ** _double(exponent),
    "IntTrueDiv": _true_quotient,
    "FloatTrueDiv": lambda base, divisor: _double(base) / _double(divisor),
    "IsNonOverlappingAndDenseIndicator": _dense_indicator,
    "CeilToInt": _to_whole(math.ceil),
    "FloorToInt": _exact_rounding(math.floor),
    "TruncToInt": _to_whole(math.trunc),
    "RoundToInt": _to_whole(round),
    "TruncToFloat": lambda value: float(_to_whole(math.trunc)(value)),
    "RoundDecimal": lambda value, digits: round(_double(value), _whole(digits)),
    "ToFloat": lambda value: _double(_number(value)),
    "Identity": lambda value: value,
    "Max": _extreme(True),
    "Min": _extreme(False),
    "BitwiseFn_bitwise_and": _bitwise(lambda a, b: a and b, lambda a, b: a & b),
    "BitwiseFn_bitwise_or": _bitwise(lambda a, b: a or b, lambda a, b: a | b),
    "BitwiseFn_bitwise_xor": _bitwise(lambda a, b: a is not b, lambda a, b: a ^ b),
}
_OPAQUE = ("sqrt", "exp", "log", "log2", "cos", "sin", "tan", "acos", "asin", "atan", "cosh", "sinh", "tanh", "asinh")
_TORCH_FUNCTIONS |= {f"OpaqueUnaryFn_{name}": _opaque(name) for name in _OPAQUE}
FUNCTIONS |= {TORCH + name: function for name, function in _TORCH_FUNCTIONS.items()}


# Lazy kinds: some arguments may have no value when the guard is evaluated, as in `Where(s0 > 0, 8 // s0, 0)`.


def _and(args: list[Any], value_of: Callable[[Any], Value]) -> bool:
    return all(_truth(value_of(arg)) for arg in args)


def _or(args: list[Any], value_of: Callable[[Any], Value]) -> bool:
    return any(_truth(value_of(arg)) for arg in args)


def _if_then_else(args: list[Any], value_of: Callable[[Any], Value]) -> Value:
    condition, then, otherwise = args
    return value_of(then if _truth(value_of(condition)) else otherwise)


def _piecewise(args: list[Any], value_of: Callable[[Any], Value]) -> Value:
    for arg in args:
        kind, pair = split(arg)
        if kind != "ExprCondPair" or len(pair) != 2:
            raise UnknownGuardError("a malformed piecewise expression")
        if _truth(value_of(pair[1])):
            return value_of(pair[0])
    raise UnknownGuardError("no piece applies")


LAZY: dict[str, Callable[[list[Any], Callable[[Any], Value]], Value]] = {
    "And": _and,
    "Or": _or,
    "ITE": _if_then_else,
    "Piecewise": _piecewise,
    TORCH + "Where": _if_then_else,
}
