"""The sweep of operators: torch's own database of them, each with its first sample inputs.

An item is an operator with a dtype, ``add|int64``; ``add|float32|gradients`` compares the gradients of its inputs, too.
Results, arguments afterwards and gradients have to be what eager execution gives. Where two eager runs differ
(uninitialised memory, for example) only shapes and types are compared.
"""

from __future__ import annotations

import copy
import itertools
import random
import zlib
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import torch
from torch.utils import _pytree as pytree

from . import closeness
from .record import ERROR, RIGHT, SKIP, WRONG, short

__all__ = ["AGAIN", "BATCH", "LIMIT", "attempt", "keys"]

BATCH = 100
AGAIN = False  # there are some 1,800 items, and nothing in their graphs that the programs do not have
LIMIT = 120.0  # seconds for one item
SAMPLES = 2

# Their memory is uninitialised: two runs may agree by chance.
_UNINITIALISED = {
    "empty", "empty_like", "new_empty", "empty_strided", "empty_permuted", "new_empty_strided", "resize_", "resize_as_",
}  # fmt: skip


def keys() -> list[str]:
    """All items on this machine's torch: float32 of every operator, int64 where it is supported."""
    return list(_items())


def attempt(key: str, backend: str, seed: int) -> tuple[str, str]:
    """(status, why) of one item under `backend`."""
    import torch._inductor.config  # late: it is of no use to the process that only asks for the names

    torch._inductor.config.fallback_random = True  # the same random numbers as eagerly
    operator, dtype, gradients = _items()[key]
    _seed(seed, key, 0)
    try:
        samples = _samples(operator, dtype, gradients)
    except Exception as error:
        return SKIP, f"samples: {short(error)}"
    if not samples:
        return SKIP, "no sample inputs"
    function = operator.get_op()

    def call(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    compiled = torch.compile(call, backend=backend)
    for number, sample in enumerate(samples):
        try:
            expected = _run(call, sample, (seed, key, number), gradients)
            again = _run(call, sample, (seed, key, number + 1000), gradients)
        except Exception as error:
            return SKIP, f"eagerly, sample {number}: {short(error)}"
        values = operator.name not in _UNINITIALISED and _same(expected, again)
        try:
            got = _run(compiled, sample, (seed, key, number), gradients)
        except Exception as error:
            return ERROR, f"sample {number}: {short(error)}"
        try:
            closeness.check(expected, got, f"sample {number} ", values=values, strides=False)
        except AssertionError as difference:
            return WRONG, short(difference)
    return RIGHT, ""


_found: dict[str, tuple[Any, torch.dtype, bool]] = {}


def _items() -> dict[str, tuple[Any, torch.dtype, bool]]:
    if not _found:
        try:
            from torch.testing._internal.common_methods_invocations import op_db  # takes four seconds
        except ModuleNotFoundError as error:
            raise SystemExit(f"torch's database of operators needs {error.name}: pip install {error.name}") from None
        for operator in sorted(op_db, key=lambda one: (one.name, one.variant_test_name)):
            supported = operator.supported_dtypes("cpu")
            for name, dtype in (("float32", torch.float32), ("int64", torch.int64)):
                if dtype in supported:
                    _found[f"{operator.full_name}|{name}"] = operator, dtype, False
            if torch.float32 in supported and operator.supports_autograd:
                _found[f"{operator.full_name}|float32|gradients"] = operator, torch.float32, True
    return _found


def _seed(*parts: object) -> None:
    number = zlib.crc32(repr(parts).encode())
    torch.manual_seed(number)
    random.seed(number)
    np.random.seed(number)


def _samples(operator: Any, dtype: torch.dtype, gradients: bool) -> list[Any]:
    """The first sample inputs; where all of them are empty, the first one that is not as well."""
    every = iter(operator.sample_inputs("cpu", dtype, requires_grad=gradients))
    samples = list(itertools.islice(every, SAMPLES))
    if all(map(_empty, samples)):
        samples += itertools.islice((one for one in itertools.islice(every, 40) if not _empty(one)), 1)
    return samples


def _empty(sample: Any) -> bool:
    tensors = _tensors((sample.input, sample.args, sample.kwargs))
    return bool(tensors) and tensors[0].layout is torch.strided and not tensors[0].numel()


def _tensors(tree: Any) -> list[torch.Tensor]:
    return [one for one in pytree.tree_leaves(tree) if isinstance(one, torch.Tensor)]


def _run(call: Callable[..., Any], sample: Any, seed: Iterable[object], gradients: bool) -> Any:
    """(results, arguments afterwards, gradients) of one call with copies of the sample's arguments."""
    args, kwargs = _copies(((sample.input, *sample.args), sample.kwargs))
    _seed(*seed)
    leaves = [one for one in _tensors((args, kwargs)) if one.requires_grad]
    out = call(*args, **kwargs)
    found: Any = ()
    if gradients:
        results = [one for one in _tensors(out) if one.requires_grad and (one.is_floating_point() or one.is_complex())]
        if results and leaves:
            loss = torch.stack([(one.abs() if one.is_complex() else one).sum().double() for one in results]).sum()
            found = torch.autograd.grad(loss, leaves, allow_unused=True)
    return closeness.snapshot((out, (args, kwargs), found))


def _copies(tree: Any) -> Any:
    try:
        return copy.deepcopy(tree)  # keeps what arguments share with each other
    except Exception:  # of tensors in a graph of autograd
        return pytree.tree_map_only(torch.Tensor, _copy, tree)


def _copy(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().clone().requires_grad_(tensor.requires_grad)


def _same(first: Any, second: Any) -> bool:
    try:
        closeness.check(first, second, "", strides=False)
    except AssertionError:
        return False
    return True
