"""The uses of a number in a program: the registered pieces, each as the text of a module ``ops``.

The number is the expression ``VALUE``, the import it needs stands where ``IMPORTS`` is. Each module has ``piece(x)``,
which takes a float32 tensor and is called in the function that is compiled.
"""

from __future__ import annotations

import dataclasses

__all__ = ["HEAD", "Piece"]


@dataclasses.dataclass(frozen=True)
class Piece:
    """One piece. `training`: what it takes to see the number (None: either). `main` stands in the main module.

    `plain`: the number must be one that Dynamo can trace. `call` is how the compiled function uses it. `values` are the
    numbers to draw from, where not any will do. `families` say what else is special.
    """

    name: str
    text: str
    training: bool | None = None
    main: str = ""
    call: str = "piece(x)"
    plain: bool = False
    stock: bool = False
    values: tuple[float, ...] = ()
    tolerance: float = 1.0
    others: dict[str, str] = dataclasses.field(default_factory=dict)
    families: tuple[str, ...] = ()


HEAD = "import torch\nIMPORTS\n"
