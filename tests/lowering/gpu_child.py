"""A process without a GPU that has graphs compiled for one, in workers: prints what came of it as JSON.

    gpu_child.py MODEL@DEVICE...        (a function of this module, a name of `common_devices`)

Dynamo traces on the CPU; the captured request is then rewritten to be for the device. What it reports is read from the
entries: the binaries' own headers say what they are for.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
import struct
import sys
import tempfile
import warnings
from collections.abc import Callable
from typing import Any
from unittest import mock

import msgspec
import torch
from capturing import captured, complete

import fxpool
from fxpool.codecache.key import components, key
from fxpool.codecache.store.store import LocalStore
from fxpool.lowering.artifact.entry_content import content_of
from fxpool.lowering.artifact.entry_parts import TRITON, decode_reply, generated_code, parts_of_entry
from fxpool.lowering.compiling.remote import spec_of
from fxpool.lowering.core.runtime import runtime
from fxpool.lowering.cuda import devices, triton_kernels
from fxpool.lowering.request.compile_request import COMPILE_JOB, CompileRequest
from fxpool.lowering.request.device_placement import Placement
from fxpool.torch_compat.cuda.common_devices import COMMON
from fxpool.torch_compat.cuda.padding import PaddingQuestion
from fxpool.torch_compat.inductor import aot
from fxpool.torch_compat.operators import memory_placement

Model = tuple[Callable[..., Any], tuple[Any, ...]]


def convolution() -> Model:
    layers = [
        torch.nn.Conv2d(3, 16, 3), torch.nn.BatchNorm2d(16), torch.nn.ReLU(), torch.nn.MaxPool2d(2),
        torch.nn.Conv2d(16, 8, 3, stride=2),
    ]  # fmt: skip
    return torch.nn.Sequential(*layers), (torch.randn(4, 3, 32, 32),)


def attention() -> Model:
    def attend(query: Any, key: Any, value: Any) -> Any:
        attended = torch.nn.functional.scaled_dot_product_attention(query, key, value, dropout_p=0.1)
        return torch.nn.functional.gelu(attended)

    return attend, tuple(torch.randn(2, 4, 64, 32, dtype=torch.bfloat16, requires_grad=True) for _ in range(3))


def _language(make: Callable[[Any], Any]) -> Model:
    import transformers

    model = make(transformers)

    def loss(tokens: Any) -> Any:
        return model(input_ids=tokens)[0].float().square().mean()

    return loss, (torch.randint(0, 500, (2, 32)),)


def gpt2() -> Model:
    return _language(
        lambda t: t.GPT2Model(t.GPT2Config(n_layer=2, n_embd=64, n_head=4, vocab_size=521, use_cache=False))
    )


def llama() -> Model:
    return _language(
        lambda t: t.LlamaModel(
            t.LlamaConfig(
                num_hidden_layers=2, hidden_size=64, num_attention_heads=4, num_key_value_heads=2,
                intermediate_size=128, vocab_size=521, use_cache=False,
            )
        )
    )  # fmt: skip


def bert() -> Model:
    return _language(
        lambda t: t.BertModel(
            t.BertConfig(
                num_hidden_layers=2, hidden_size=64, num_attention_heads=4, intermediate_size=128, vocab_size=521
            )
        )
    )


def product() -> Model:
    """One that lowering wants to measure padded."""

    def multiply(a: Any, b: Any) -> Any:
        return (a @ b).relu()

    return multiply, (torch.randn(4095, 4095, dtype=torch.bfloat16), torch.randn(4095, 4095, dtype=torch.bfloat16))


def product32() -> Model:
    """A product of numbers of 32 bits, of which Inductor warns."""
    return lambda a, b: (a @ b).relu(), (torch.randn(32, 48), torch.randn(48, 16))


def constants() -> Model:
    """Tensors that are made in the graph of numbers: what follows of them is known while it is traced."""

    def made(x: Any) -> Any:
        zero = torch.tensor(0.0, device="cpu", dtype=x.dtype)
        return torch.where(x > zero, x * torch.tensor([1.0, 2.0, 3.0], device="cpu"), zero - 1) * zero.exp()

    return made, (torch.randn(4, 3, requires_grad=True),)


def misaligned() -> Model:
    """Two inputs of one size, one of which begins where no vector may be loaded."""
    return lambda x, y: (x + 1) * y, (torch.randn(64), torch.randn(65)[1:])


# ------------------------------------------------------------------------------


def moved(data: Any) -> Any:
    """An encoded graph or input, on CUDA device 0 instead of the CPU."""
    if isinstance(data, list):
        if len(data) == 2 and data[0] == "cpu" and data[1] is None:
            return ["cuda", 0]
        if len(data) == 3 and data[:2] == ["device", "cpu"]:
            return ["device", "cuda", 0]
        return [moved(part) for part in data]
    return "cuda" if data == "cpu" else data


def for_device(request: CompileRequest, name: str) -> CompileRequest:
    """The request of a CPU graph as one for a device of the table."""
    facts = COMMON[name]
    graph, inputs = (
        msgspec.msgpack.encode(moved(msgspec.msgpack.decode(data))) for data in (request.graph, request.inputs)
    )
    parts: dict[str, Any] = dict.fromkeys(components.ORDER, "")
    parts |= {"graph": graph, "inputs": inputs, "system": Placement((0,), (facts,)).key_part()}
    made = key.GraphKey.of(parts)
    return dataclasses.replace(request, graph=graph, inputs=inputs, devices=(facts,), key=made)


def architecture(binary: bytes) -> int:
    """The compute capability, times ten, that the header of a CUDA binary names."""
    (flags,) = struct.unpack_from("<I", binary, 48)
    # Binaries of the newer ABI (version 8) have it in the second byte.
    return flags >> 8 & 0xFF if binary[8] >= 8 else flags & 0xFF


def answered_afterwards(request: CompileRequest, answers: bool) -> tuple[list[PaddingQuestion], Any]:
    """For a caller that is not asked on the way: what it is asked as a result, and what was measured in the end."""
    request = dataclasses.replace(request, store=None)
    asked: list[PaddingQuestion] = []
    while True:
        answer = decode_reply(runtime.pool().submit(COMPILE_JOB, request.dump(), spec_of(request)).result())
        if not answer.questions:
            assert answer.artifact is not None
            return asked, answer.artifact.decisions.measured
        assert not set(asked) & set(answer.questions), "asked twice"
        asked += answer.questions
        request = dataclasses.replace(request, measured=[(question, answers) for question in asked])


def facts_of_inputs(graph: Any) -> dict[str, Any]:
    """What whoever loads a graph goes by: which inputs stay where they are, which are looked at, CUDA graphs."""
    return {
        "static": sorted(graph.fx_kwargs["static_input_idxs"]),
        "looked at": sorted(graph.inputs_to_check),
        "written": sorted(graph.mutated_input_idxs),
        "not recorded": graph.disabled_cudagraphs_reason,
        "recorded": graph.cudagraph_info is not None,
    }


def compiled(request: CompileRequest, answers: bool) -> dict[str, Any]:
    asked: list[PaddingQuestion] = []

    def answer_one(question: bytes) -> bytes:
        asked.append(msgspec.msgpack.decode(question, type=PaddingQuestion))
        return b"1" if answers else b"0"

    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        job = runtime.pool().submit(COMPILE_JOB, request.dump(), spec_of(request), on_ask=answer_one)
        answer = decode_reply(job.result())
    assert not answer.questions, "they were answered"
    assert answer.reference is not None, answer.artifact and answer.artifact.unkept
    assert request.store is not None
    store = LocalStore(request.store)
    (entry,) = store.entries(answer.reference.key)
    data = store.read_blob(entry.blobs[TRITON])
    assert data is not None
    candidates = [(k.name, c) for k in triton_kernels.decode(data) for c in k.candidates]
    texts = [text for _, text in generated_code(entry, store)]
    graphs = aot.graphs_of(aot.load_result(parts_of_entry(entry, store).result()))
    return {
        "inputs": [facts_of_inputs(graph) for graph in graphs],
        "warned": [str(one.message) for one in warned],
        "kernels": sorted({name for name, _ in candidates}), "graphs": len(texts), "bytes": len(data),
        "targets": sorted({architecture(candidate.binary) for _, candidate in candidates}),
        "calls": sorted(set(re.findall(r"(?:extern_kernels|torch\.ops\.aten)\.(\w+)[\w.]*\(", "".join(texts)))),
        "ambient": sorted(os.listdir(os.path.join(request.toolchain_dir or "", "devices"))),
        "questions": [msgspec.to_builtins(question) for question in asked],
        "attempts": job.attempts,
        "measured": content_of(entry).decisions.measured,
    }  # fmt: skip


def unanswered(request: CompileRequest) -> str:
    """What a worker says to a request that lacks a fact."""
    (facts,) = request.devices
    properties = {name: value for name, value in facts.properties.items() if name != "multi_processor_count"}
    lacking = dataclasses.replace(request, devices=(msgspec.structs.replace(facts, properties=properties),), store=None)
    job = runtime.pool().submit(COMPILE_JOB, lacking.dump(), spec_of(lacking))
    answer = decode_reply(job.result())
    return answer.unanswered or repr(answer)[:2000]


def on_an_old_one(request: CompileRequest) -> list[str]:
    """How a compile for a device without bfloat16 ends, and its warnings."""
    facts = request.devices[0]
    properties = {**facts.properties, "major": 7, "minor": 5}
    old = msgspec.structs.replace(facts, capability=(7, 5), properties=properties)
    request = dataclasses.replace(request, devices=(old,), store=None)
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        job = runtime.pool().submit(COMPILE_JOB, request.dump(), spec_of(request))
        try:
            job.result()
            end = "compiled"
        except Exception as error:
            end = type(error).__name__
    return [end, *(str(one.message) for one in warned)]


def _as_on_gpu(offset: int, device: str, look: Callable[[int, str], bool] = memory_placement.is_misaligned) -> bool:
    return look(offset, "cuda")


def main(wanted: list[str]) -> None:
    report: dict[str, Any] = {"cuda": torch.cuda.is_available()}
    with tempfile.TemporaryDirectory() as place:
        devices._library(os.path.join(place, "store", "toolchain"))  # as `library_ahead` does, where there is a device
        for name in wanted:
            model, device = name.split("@")
            torch.manual_seed(0)
            function, inputs = globals()[model]()
            # The place of an input in memory is part of a request for a GPU only.
            with mock.patch.object(memory_placement, "is_misaligned", _as_on_gpu):
                (only,) = captured(
                    function, *inputs, run=False
                )  # 4095 x 4095 in bfloat16 takes minutes on some processors
            request = for_device(complete(only, place), device)
            report[name] = compiled(request, answers=True)
            if report[name]["questions"]:
                questions, measured = answered_afterwards(request, answers=True)
                report[name]["afterwards"] = msgspec.to_builtins([questions, measured])
            if model == "attention" and "old" not in report:
                report["old"] = on_an_old_one(request)
            if "unanswered" not in report:
                report["unanswered"] = unanswered(request)
        fxpool.close()
    print(json.dumps(report))


if __name__ == "__main__":
    main(sys.argv[1:])
