"""`sympy_functions` finds the functions that torch puts into expressions of sizes: they travel by name."""

from __future__ import annotations

import sympy

from fxpool.torch_compat.dynamo.sympy_functions import function_classes, integer_infinities


def test_functions_of_sizes_are_found_and_compute() -> None:
    classes = function_classes()
    a, b = sympy.symbols("a b", integer=True, positive=True)
    for name, expected in (
        ("FloorDiv", 3),
        ("Mod", 1),
        ("PythonMod", 1),
        ("CeilDiv", 4),
        ("Max", 10),
        ("Min", 3),
        ("TruncToInt", None),
        ("OpaqueUnaryFn_sqrt", None),
    ):
        assert name in classes, name
        made = classes[name](a, b) if expected is not None else classes[name](a)
        assert isinstance(made, sympy.Basic)
        if expected is not None:
            assert made.subs({a: 10, b: 3}) == expected


def test_a_class_is_found_under_its_own_name() -> None:
    assert {name: cls.__name__ for name, cls in function_classes().items() if cls.__name__ != name} == {}
    assert "MinMaxBase" not in function_classes()
    assert function_classes()["Max"] is not sympy.Max
    assert {cls.__module__ for cls in function_classes().values()} == {"torch.utils._sympy.functions"}


def test_infinities_of_the_integers_have_names() -> None:
    infinities = integer_infinities()
    assert {str(value): value for value in infinities.values()} == infinities
    assert infinities["int_oo"].is_integer and infinities["-int_oo"] == -infinities["int_oo"]
    assert infinities["-int_oo"] < -(2**80) and infinities["int_oo"] > 2**80
    assert infinities["int_oo"] != sympy.oo
