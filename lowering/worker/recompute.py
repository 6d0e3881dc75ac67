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
from fxpool.lowering.artifact import recomputed
from fxpool.lowering.artifact.entry_parts import Artifact, decode_reply, parts_of_artifact
from fxpool.lowering.artifact.recomputed import Recomputed, RecomputeQuestion
from fxpool.lowering.request import ambient
from fxpool.lowering.request.compile_request import AOT, CompileRequest
from fxpool.lowering.worker import jobs
from fxpool.lowering.worker.random_inputs import NoInputsError, real_inputs
from fxpool.torch_compat import nested
from fxpool.torch_compat.dynamo import shape_env, tensors, tracing
from fxpool.torch_compat.inductor import aot, inner, output_code

__all__ = ["recompute_job"]


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
    made = reply.artifact
    if made is None:
        asked = reply.unanswered or "timing products"
        raise CannotReturnError("device_needed", f"recompiling it needs a device for: {asked}")
    answer = Recomputed(differences=recomputed.differences(question.kept, made))
    answer.differences |= _code_differences(question.kept, made)
    try:
        if difference := _run_both(request, question.kept, made, question.seed):
            answer.differences["outputs"] = difference
    except NoInputsError as error:
        answer.not_run = str(error)
    return msgspec.msgpack.encode(answer)


def _graphs(artifact: Artifact) -> list[Any]:
    if not artifact.result:
        return []  # the compile ended in a restart
    if artifact.level == AOT:
        return aot.graphs_of(aot.load_result(artifact.result))
    return [inner.load(artifact.result)]


def _code_differences(kept: Artifact, made: Artifact) -> dict[str, str]:
    found = {}
    ours, theirs = _graphs(kept), _graphs(made)
    if len(ours) != len(theirs):
        found["graphs"] = f"{len(ours)} in the cache, {len(theirs)} recompiled"
    for ours_one, theirs_one in zip(ours, theirs, strict=False):
        name = output_code.name_of(theirs_one)
        if difference := recomputed.diff_of(ours_one.source_code, theirs_one.source_code):
            found[f"code of {name}"] = difference
        elif _wrapper_code(ours_one) != _wrapper_code(theirs_one):
            found[f"wrapper of {name}"] = "its compiled form does not match its source"
    return found


def _wrapper_code(graph: Any) -> Any:
    return marshal.loads(graph._fxpool_wrapper.code) if output_code.is_linked(graph) else None


def _run_both(request: CompileRequest, kept: Artifact, made: Artifact, seed: int) -> str:
    """Return how outputs differ, empty if they are equal. Raises NoInputsError: they cannot be compared."""
    if not made.result or not kept.result:
        raise NoInputsError("it has no code: its compile made Dynamo trace again")
    if request.devices or request.visible is not None or made.triton is not None:
        raise NoInputsError("it runs on a GPU")
    if request.group_sizes:
        raise NoInputsError("it communicates with other ranks")
    env = shape_env.load(request.shapes, request.hints) if request.shapes is not None else shape_env.ShapeEnv()
    fake_mode = tensors.new_fake_mode(env)
    with ambient.entered(request.ambient), tracing.worker_context(fake_mode, request.compile_id):
        decoder = graph_decoder.GraphDecoder(tensors.Builder(fake_mode), env, request.constants)
        described = msgspec.msgpack.decode(request.inputs)
        fakes = [decoder.value(value) for value in (described if request.level == AOT else described[0])]
        if request.level == AOT:
            gm = decoder.decode(msgspec.msgpack.decode(request.graph), request.names, request.debug)
            fakes = [*aot.parameters_and_buffers(gm).values(), *fakes]
        load = _load_aot if request.level == AOT else _load_inner
        made_call = load(request, made, fakes)
        try:
            kept_call = load(request, kept, fakes)
        except Exception as error:  # untrusted code may raise anything
            return f"the cached code does not load: {type(error).__name__}: {error}"
    with ambient.entered(request.ambient):
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
    graph = inner.load(artifact.result)
    output_code.put_into(graph, parts_of_artifact(artifact))
    loaded: Callable[[list[Any]], Any] = inner.finish(
        graph, fakes, inner.worker_arguments(request.arguments), request.constants
    )
    return loaded


def _outputs(call: Callable[[list[Any]], Any], inputs: list[Any], seed: int) -> list[torch.Tensor]:
    """Return outputs, inputs (which the code may have written to), and gradients if there is a backward."""
    torch.manual_seed(seed)
    given = [one for one in inputs if isinstance(one, torch.Tensor)]
    outputs = [one for one in nested.flatten(call(list(inputs)))[0] if isinstance(one, torch.Tensor)]
    leaves = [one for one in given if one.requires_grad and one.is_leaf]
    ends = [one for one in outputs if one.requires_grad and one.dtype.is_floating_point]
    gradients: Sequence[torch.Tensor | None] = ()
    if leaves and ends:
        gradients = torch.autograd.grad(ends, leaves, [torch.ones_like(one) for one in ends], allow_unused=True)
    found = [*outputs, *given, *(one for one in gradients if one is not None)]
    return [one.detach().to(torch.float32) if one.dtype.itemsize == 1 else one.detach() for one in found]
