"""A process without a GPU whose graphs are compiled with ``max_autotune`` for one: prints what came of it as JSON.

    tuning_child.py none | deadly | template=WORDS | convolution=WORDS ...

Candidates are timed by nobody (``none``), or by `tuning_jobs`: what has the words in its source is the fastest.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
import sys
import tempfile
from typing import Any

import torch
from capturing import captured, complete
from gpu_child import architecture, for_device

import fxpool
from fxpool.codecache.store.store import LocalStore
from fxpool.lowering.artifact.entry_content import content_of
from fxpool.lowering.artifact.entry_parts import TRITON, decode_reply, generated_code
from fxpool.lowering.compiling.remote import spec_of
from fxpool.lowering.core.runtime import runtime
from fxpool.lowering.cuda import triton_kernels
from fxpool.lowering.request.compile_request import COMPILE_JOB, CompileRequest

DEVICE = "NVIDIA H200"


def product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return (a @ b).relu()


def convolution(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.conv2d(x, weight)


def request_of(what: str, place: str) -> CompileRequest:
    if what == "convolution":
        inputs = torch.randn(4, 64, 32, 32), torch.randn(64, 64, 1, 1)
        (only,) = captured(convolution, *inputs)
    else:
        inputs = torch.randn(512, 512, dtype=torch.bfloat16), torch.randn(512, 512, dtype=torch.bfloat16)
        (only,) = captured(product, *inputs)
    return dataclasses.replace(for_device(complete(only, place), DEVICE), timing="7")


def compiled(request: CompileRequest, job: str) -> dict[str, Any]:
    sent = runtime.pool().submit(job, request.dump(), spec_of(request))
    answer = decode_reply(sent.result())
    assert answer.reference is not None, answer.unanswered or answer
    assert request.store is not None
    store = LocalStore(request.store)
    (entry,) = store.entries(answer.reference.key)
    data = store.read_blob(entry.blobs[TRITON]) if TRITON in entry.blobs else None
    kernels = triton_kernels.decode(data) if data is not None else []
    (text,) = (text for _, text in generated_code(entry, store))
    return {
        "guessed": answer.reference.guessed,
        "tuned": content_of(entry).decisions.tuned,
        "told": list(entry.metadata.extra.values()),
        "kernels": [kernel.name for kernel in kernels],
        "targets": sorted({architecture(one.binary) for kernel in kernels for one in kernel.candidates}),
        "calls": sorted(set(re.findall(r"(?:extern_kernels\.\w+|triton_tem_\w+\.run)\(", text))),
        "blocks": sorted(set(re.findall(r"BLOCK_[MN] : tl.constexpr = \d+", text))),
    }


def report(what: str, words: str) -> list[dict[str, Any]]:
    jobs = {"none": COMPILE_JOB, "deadly": "tuning_jobs:compile_deadly"}
    os.environ["TORCHINDUCTOR_FASTEST"] = words
    options = {"max_autotune": True, "max_autotune_gemm_backends": "ATEN,TRITON"}
    reports = []
    with tempfile.TemporaryDirectory() as place, torch._inductor.config.patch(options):
        request = request_of(what, place)
        reports.append(compiled(request, jobs.get(what, "tuning_jobs:compile_timed")))
        if what == "template":  # what was found out is kept: nothing is compiled for it, nobody is asked
            again = dataclasses.replace(request, store=os.path.join(place, "other"))
            reports.append(compiled(again, "tuning_jobs:compile_known"))
    return reports


def main() -> None:
    found = {what: report(what, words) for what, _, words in (argument.partition("=") for argument in sys.argv[1:])}
    fxpool.close()
    print(json.dumps(found))


if __name__ == "__main__":
    main()
