"""A process that compiles a Triton kernel for a GPU that the machine lacks, and prints what came of it as JSON.

TRITON_PTXAS_PATH is a script that writes a line for each assembly.
"""

from __future__ import annotations

import json
import sys

import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

import fxpool


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def add(x, y, out, n, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]  # Triton reads annotations
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + i, tl.load(x + i, mask=i < n) + tl.load(y + i, mask=i < n), mask=i < n)


def main() -> None:
    signature = {"x": "*fp32", "y": "*fp32", "out": "*fp32", "n": "i32", "BLOCK": "constexpr"}
    source = ASTSource(fn=add, signature=signature, constexprs={(4,): 128})
    kernel = triton.compile(source, target=GPUTarget("cuda", 90, 32))
    print(
        json.dumps(
            {
                "binary": kernel.asm["cubin"].hex(),
                "name": kernel.metadata.name,
                "shared": kernel.metadata.shared,
                "stages": sorted(kernel.asm),
                "once": fxpool.stats()["once"],
                "torch": "torch" in sys.modules,
            }
        )
    )


main()
