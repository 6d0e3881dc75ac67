"""The job of ``fxpool cache verify --recompute``: compile a cached graph again, and compare.

    request stored with the entry ──▶ `jobs.compile_job`, without a store ──┐
    contents of the entry ──────────────────────────────────────────────────┴▶ code, guards, effects compared;
                                                                               on the CPU, both run on equal inputs

Both run in this worker: code that crashes ends only the job.
"""

from __future__ import annotations

import dataclasses
import marshal
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import torch

from fxpool.codecache.graph import graph_decoder
from fxpool.errors import CannotReturnError
from fxpool.lowering.artifact import recompute_outcome
from fxpool.lowering.artifact.entry_parts import Artifact, decode_reply, parts_of_artifact
from fxpool.lowering.artifact.recompute_outcome import Recomputed, RecomputeQuestion
from fxpool.lowering.request import ambient_state
from fxpool.lowering.request.compile_request import AOT, CompileRequest
from fxpool.lowering.worker import jobs
from fxpool.torch_compat.dynamo import shape_env, tensors, tracing
from fxpool.torch_compat.inductor import aot, aot_graph, output_code

__all__ = ["NoInputsError", "real_inputs", "recompute_job"]


def recompute_job(payload: bytes) -> bytes:
    """Job: answer a `RecomputeQuestion` with a `Recomputed`.

    Raises:
        CannotTravelError: the program's code is not available here, or has changed.
        CannotReturnError: the compile needs an answer from a device.
        Exception: any error of the compile.
    """
    question = msgspec.msgpack.decode(payload, type=RecomputeQuestion)
    # Without a store, there is no lookup, and the result is returned inline.
    request = dataclasses.replace(
        CompileRequest.load(question.request),
        toolchain_dir=question.toolchain_dir,
        keep_request=False,
        debug_files=None,
    )
    reply = decode_reply(jobs.compile_job(request.dump()))
    recompiled = reply.artifact
    if recompiled is None:
        asked = reply.unanswered or "timing products"
        raise CannotReturnError("device_needed", f"recompiling it needs a device for: {asked}")
    answer = Recomputed(differences=recompute_outcome.differences(question.stored, recompiled))
    answer.differences |= _code_differences(question.stored, recompiled)
    try:
        if difference := _run_both(request, question.stored, recompiled, question.seed):
            answer.differences["outputs"] = difference
    except NoInputsError as error:
        answer.not_run = str(error)
    return msgspec.msgpack.encode(answer)


def _graphs(artifact: Artifact) -> list[Any]:
    if not artifact.result:
        return []  # the compile ended in a restart
    if artifact.level == AOT:
        return aot.graphs_of(aot.load_result(artifact.result))
    return [aot_graph.load(artifact.result)]


def _code_differences(cached: Artifact, recompiled: Artifact) -> dict[str, str]:
    found = {}
    ours, theirs = _graphs(cached), _graphs(recompiled)
    if len(ours) != len(theirs):
        found["graphs"] = f"{len(ours)} in the cache, {len(theirs)} recompiled"
    for ours_one, theirs_one in zip(ours, theirs, strict=False):
        name = output_code.name_of(theirs_one)
        if difference := recompute_outcome.diff_of(ours_one.source_code, theirs_one.source_code):
            found[f"code of {name}"] = difference
        elif _wrapper_code(ours_one) != _wrapper_code(theirs_one):
            found[f"wrapper of {name}"] = "its compiled form does not match its source"
    return found


def _wrapper_code(graph: Any) -> Any:
    return marshal.loads(graph._fxpool_wrapper.code) if output_code.is_linked(graph) else None


def _run_both(request: CompileRequest, cached: Artifact, recompiled: Artifact, seed: int) -> str:
    """Return how outputs differ, empty if they are equal. Raises NoInputsError: they cannot be compared."""
    if not recompiled.result or not cached.result:
        raise NoInputsError("it has no code: its compile made Dynamo trace again")
    if request.devices or request.visible is not None or recompiled.triton is not None:
        raise NoInputsError("it runs on a GPU")
    if request.group_sizes:
        raise NoInputsError("it communicates with other ranks")
    env = shape_env.load(request.shapes, request.hints) if request.shapes is not None else shape_env.ShapeEnv()
    fake_mode = tensors.new_fake_mode(env)
    with ambient_state.entered(request.ambient), tracing.worker_context(fake_mode, request.compile_id):
        decoder = graph_decoder.GraphDecoder(tensors.Builder(fake_mode), env, request.constants)
        described = msgspec.msgpack.decode(request.inputs)
        fakes = [decoder.value(value) for value in (described if request.level == AOT else described[0])]
        if request.level == AOT:
            gm = decoder.decode(msgspec.msgpack.decode(request.graph), request.names, request.debug)
            fakes = [*aot.parameters_and_buffers(gm).values(), *fakes]
        load = _load_aot if request.level == AOT else _load_inner
        made_call = load(request, recompiled, fakes)
        try:
            kept_call = load(request, cached, fakes)
        except Exception as error:  # untrusted code may raise anything
            return f"the cached code does not load: {type(error).__name__}: {error}"
    with ambient_state.entered(request.ambient):
        try:
            expected = _outputs(made_call, real_inputs(fakes, seed), seed)
        except RuntimeError as error:
            raise NoInputsError(f"it rejects random inputs: {error}") from error
        try:
            found = _outputs(kept_call, real_inputs(fakes, seed), seed)
        except Exception as error:  # as above
            return f"the cached code does not run: {type(error).__name__}: {error}"
    try:
        torch.testing.assert_close(found, expected, equal_nan=True)
    except AssertionError as error:
        return " ".join(str(error).split())
    return ""


def _load_aot(request: CompileRequest, artifact: Artifact, fakes: Sequence[Any]) -> Callable[[list[Any]], Any]:
    result = aot.load_result(artifact.result)
    for graph in aot.graphs_of(result):
        output_code.put_into(graph, parts_of_artifact(artifact))
    return aot.wrap(result, fakes, None)


def _load_inner(request: CompileRequest, artifact: Artifact, fakes: Sequence[Any]) -> Callable[[list[Any]], Any]:
    graph = aot_graph.load(artifact.result)
    output_code.put_into(graph, parts_of_artifact(artifact))
    loaded: Callable[[list[Any]], Any] = aot_graph.finish(
        graph, fakes, aot_graph.worker_arguments(request.arguments), request.constants
    )
    return loaded


def _outputs(call: Callable[[list[Any]], Any], inputs: list[Any], seed: int) -> list[torch.Tensor]:
    """Return outputs, inputs (which the code may have written to), and gradients if there is a backward."""
    torch.manual_seed(seed)
    given = [one for one in inputs if isinstance(one, torch.Tensor)]
    outputs = [one for one in tensors.flatten(call(list(inputs)))[0] if isinstance(one, torch.Tensor)]
    leaves = [one for one in given if one.requires_grad and one.is_leaf]
    ends = [one for one in outputs if one.requires_grad and one.dtype.is_floating_point]
    gradients: Sequence[torch.Tensor | None] = ()
    if leaves and ends:
        gradients = torch.autograd.grad(ends, leaves, [torch.ones_like(one) for one in ends], allow_unused=True)
    found = [*outputs, *given, *(one for one in gradients if one is not None)]
    return [one.detach().to(torch.float32) if one.dtype.itemsize == 1 else one.detach() for one in found]


class NoInputsError(Exception):
    """No inputs can be made for a graph; the message says why."""


def real_inputs(fakes: Sequence[Any], seed: int) -> list[Any]:
    """Return an input for each fake one: random numbers, and for integers 0 and 1, which index anything.

    Inputs that share memory do so here, too. The same seed gives the same inputs. Raises NoInputsError.
    """
    generator = torch.Generator().manual_seed(seed)
    memory: dict[int, torch.Tensor] = {}
    return [_real(fake, generator, memory) for fake in fakes]


def _real(fake: Any, generator: torch.Generator, memory: dict[int, torch.Tensor]) -> Any:
    if isinstance(fake, (torch.SymInt, torch.SymFloat, torch.SymBool)):
        return _number(fake)
    if fake is None or isinstance(fake, (bool, int, float)):
        return fake
    if not isinstance(fake, torch.Tensor):
        raise NoInputsError(f"it takes a {type(fake).__name__}")
    if fake.device.type != "cpu":
        raise NoInputsError(f"it runs on {fake.device.type}")
    if fake.layout is not torch.strided or fake.is_conj() or fake.is_neg() or fake.is_quantized:
        raise NoInputsError("it takes a tensor that is not a plain block of memory")
    size, stride = [_number(n) for n in fake.shape], [_number(n) for n in fake.stride()]
    offset = _number(fake.storage_offset())
    storage = fake.untyped_storage()
    length = _number(storage.nbytes()) // fake.dtype.itemsize
    needed = offset + sum((n - 1) * step for n, step in zip(size, stride, strict=True)) + 1 if all(size) else offset
    place = storage._cdata
    if place not in memory:
        memory[place] = _random(max(length, needed), fake.dtype, generator)
    block = memory[place]
    if block.dtype != fake.dtype or block.numel() < needed:
        raise NoInputsError("its inputs share memory under different types")
    recompiled = block.as_strided(size, stride, offset)
    return recompiled.requires_grad_() if fake.requires_grad else recompiled


def _number(value: Any) -> Any:
    """Return the value that a symbol had when the graph was compiled. Raises NoInputsError: it had no value."""
    if isinstance(value, (bool, int, float)):
        return value
    hint = value.node.hint
    if hint is None:
        raise NoInputsError("it takes sizes that are only known at run time")
    return hint if isinstance(hint, (bool, int, float)) else int(hint)


def _random(length: int, dtype: torch.dtype, generator: torch.Generator) -> torch.Tensor:
    if dtype.is_floating_point or dtype.is_complex:
        kind = dtype if dtype.is_complex else torch.float32
        return torch.randn(length, dtype=kind, generator=generator).to(dtype)
    return torch.randint(0, 2, (length,), generator=generator).to(dtype)
