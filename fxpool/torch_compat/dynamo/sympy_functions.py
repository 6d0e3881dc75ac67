"""torch's own sympy functions and constants, found by inspection in the installed version.

torch 2.11 to 2.13 define them in `torch.utils._sympy.functions` and `.numbers`. A class that a later version adds is
found automatically, and callers refuse unknown names.
"""

from __future__ import annotations

import functools
import inspect

import sympy


@functools.cache
def function_classes() -> dict[str, type[sympy.Basic]]:
    """Return every sympy class that torch defines for shape expressions, by name, such as `OpaqueUnaryFn_sqrt`.

    Abstract bases are left out. torch's `Min` and `Max` are included; they are not sympy's.
    """
    from torch.utils._sympy import functions

    return {
        name: member
        for name, member in vars(functions).items()
        if inspect.isclass(member)
        and issubclass(member, sympy.Basic)
        and member.__module__ == functions.__name__
        and not name.startswith("_")
        and name != "MinMaxBase"
    }


@functools.cache
def integer_infinities() -> dict[str, sympy.Basic]:
    """Return torch's infinities among the integers, by name."""
    from torch.utils._sympy.numbers import int_oo

    return {"int_oo": int_oo, "-int_oo": -int_oo}
