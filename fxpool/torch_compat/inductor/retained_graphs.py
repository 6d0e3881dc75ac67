"""Backward code that autograd may run again: after ``backward(retain_graph=True)`` or ``create_graph=True``.

Autograd saves tensors between forward and backward. Inductor has the backward overwrite those that nothing else uses,
the donated buffers, which saves memory. Stock torch lowers a backward when autograd comes to it for the first time, and
donates nothing if the program retains the graph then; later, it raises an error if the graph is retained nevertheless.
A worker lowers the backward beside the forward, before anybody can say. So the code here always donates, and runs on
copies of these tensors where the graph is retained.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch._dynamo  # first, see torch_compat
from torch._dynamo.eval_frame import innermost_fn
from torch._inductor import config

__all__ = ["RepeatableBackward", "allow"]

#: Takes its inputs in a list, which it may empty.
Backward = Callable[[list[Any]], Any]

_is_retained: Callable[[], bool] = torch._C._autograd._get_current_graph_task_keep_graph


class RepeatableBackward:
    """The backward of a bundled result, in place of torch's class. Pickled with its result."""

    def __init__(self, backward: Any, metadata: Any) -> None:
        self.result = backward.result
        self.backward_state_indices: list[int] = backward.backward_state_indices
        self.num_symints_saved_for_bw_: int = backward.num_symints_saved_for_bw_
        self._backward = backward
        self._metadata = metadata

    def pre_save(self) -> None:
        """Prepare for pickling, as torch's class does."""
        self._backward.pre_save()
        self.result = self._backward.result

    def load(self, inputs: Sequence[Any]) -> Any:
        """Return Inductor's output."""
        return self._backward.load(inputs)

    def post_compile(self, result: Any, fx_config: Any) -> Any:
        """Return the callable, and let torch run it for graphs that are retained."""
        call = self._backward.post_compile(result, fx_config)
        overwritten = self._metadata.bw_donated_idxs
        by_address = bool(fx_config.get("cudagraphs"))
        if overwritten and by_address and not config.triton.cudagraph_trees:
            return call  # its recording works on one address only: torch's check refuses to retain the graph
        self._metadata.bw_donated_idxs = []  # of the same object as torch's check; it has been traced by now
        if not overwritten:
            return call
        # torch has marked it, which takes longer than the call itself: once is enough.
        careful = (_on_buffers if by_address else _on_copies)(innermost_fn(call), tuple(overwritten))
        careful._boxed_call = True  # type: ignore[attr-defined]
        return torch._dynamo.disable(careful, reason="do not trace generated backwards pass")


def allow(result: Any) -> None:
    """Let the backward of a bundled result run repeatedly, before the result is wrapped or pickled."""
    if result.compiled_bw is not None:
        result.compiled_bw = RepeatableBackward(result.compiled_bw, result.runtime_metadata)


def _on_copies(call: Backward, overwritten: Sequence[int]) -> Backward:
    """Run `call` on copies of the inputs at these positions if the graph is retained."""

    def backward(inputs: list[Any]) -> Any:
        if _is_retained():
            for position in overwritten:
                inputs[position] = _copy(inputs[position])
        return call(inputs)

    return backward


def _on_buffers(call: Backward, overwritten: Sequence[int]) -> Backward:
    """Do the same for CUDA graphs, which torch records again for each other address of these inputs.

    So the copies stay where they are, and results that lie in them are copied in turn.
    """
    buffers: dict[Any, torch.Tensor] = {}

    def backward(inputs: list[Any]) -> Any:
        if not _is_retained():
            return call(inputs)
        used = set()
        for position in overwritten:
            tensor = inputs[position]
            key = (position, tensor.size(), tensor.stride(), tensor.dtype, tensor.device)
            buffer = buffers.get(key)
            if buffer is None:
                buffer = buffers[key] = _copy(tensor)
            else:
                _memory(buffer).copy_(_memory(tensor))
            inputs[position] = buffer
            used.add(buffer.untyped_storage().data_ptr())
        return [_copy(one) if _lies_in(one, used) else one for one in call(inputs)]

    return backward


def _lies_in(value: Any, addresses: set[int]) -> bool:
    return isinstance(value, torch.Tensor) and value.untyped_storage().data_ptr() in addresses


def _copy(tensor: torch.Tensor) -> torch.Tensor:
    """Return a copy with the same strides, which the code relies on, for any layout."""
    copy = tensor.clone()
    if copy.stride() == tensor.stride():
        return copy
    return _memory(tensor).clone().as_strided(tensor.size(), tensor.stride())


def _memory(tensor: torch.Tensor) -> torch.Tensor:
    """Return the memory that a tensor spans, as a tensor with one dimension."""
    span = 1 + sum((size - 1) * stride for size, stride in zip(tensor.size(), tensor.stride(), strict=True))
    return tensor.as_strided((span if tensor.numel() else 0,), (1,))
