"""A process in which stock Inductor works on fxpool's pool: runs one scenario, prints what came of it as JSON.

    install_child.py SCENARIO       (a function of this module)

What it reports does not rest on fxpool's counters: constructions of Inductor's GraphLowering, the workers that jobs ran
in, and the processes that were started are counted here.
"""

from __future__ import annotations

import contextlib
import json
import logging
import math
import os
import signal
import sys
import threading
import time
import warnings
from concurrent.futures import wait
from typing import Any

import child
import psutil

import fxpool

KERNEL = """
@triton_heuristics.pointwise(
    size_hints={'x': 1024}, filename=__file__,
    triton_meta={'signature': {'a': '*fp32', 'xnumel': 'i32', 'XBLOCK': 'constexpr'}, 'device': DEVICE,
                 'constants': {}, 'configs': [{}]},
    inductor_meta={'grid_type': 'Grid1D', 'kernel_name': 'doubled', 'mutated_arg_names': ['a'], 'optimize_mem': True},
    min_elem_per_thread=0)
@triton.jit
def doubled(a, xnumel, XBLOCK: tl.constexpr):
    at = tl.program_id(0) * XBLOCK + tl.arange(0, XBLOCK)
    tl.store(a + at, tl.load(a + at, mask=at < xnumel) * 2, mask=at < xnumel)
"""

jobs: list[Any] = []


def note_jobs() -> None:
    """Keep every job that this process gives to a pool."""
    from fxpool.pool import PoolClient

    original = PoolClient.submit

    def submit(self: Any, *args: Any, **kwargs: Any) -> Any:
        job = original(self, *args, **kwargs)
        jobs.append(job)
        return job

    PoolClient.submit = submit  # type: ignore[method-assign]


def mlp() -> tuple[Any, Any]:
    import torch

    torch.manual_seed(0)
    layers = [torch.nn.Linear(24, 48), torch.nn.GELU(), torch.nn.LayerNorm(48), torch.nn.Linear(48, 8)]
    return torch.nn.Sequential(*layers), torch.randn(4, 24)


def transformer() -> tuple[Any, Any]:
    import torch

    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(32, 2, 48, dropout=0.0, batch_first=True)
    return layer.train(), torch.randn(2, 6, 32)  # in eval mode it is one operator of torch's


def train(run: Any, x: Any, model: Any) -> list[Any]:
    """Output and gradients."""
    model.zero_grad()
    out = run(x)
    out.square().mean().backward()
    return [out.detach(), *(p.grad.clone() for p in model.parameters())]


def compare(*models: Any) -> bool:
    """Compile models with stock Inductor, train a step; whether all is as eager has it."""
    import torch

    for model, x in models:
        expected = train(model, x, model)
        torch.testing.assert_close(train(torch.compile(model), x, model), expected, rtol=1e-4, atol=1e-5)
    return True


def sidecars() -> list[int]:
    """Inductor's own workers among our processes; others may end while we look."""
    found = []
    for process in psutil.Process().children(True):
        with contextlib.suppress(psutil.Error):
            if "compile_worker" in " ".join(process.cmdline()):
                found.append(process.pid)
    return found


def facts() -> dict[str, Any]:
    from torch._dynamo.utils import counters

    return {
        "lowerings": child.lowerings.count,
        "workers": [job.worker_pid for job in jobs],
        "attempts": [job.attempts for job in jobs],
        "hits": counters["inductor"]["fxgraph_cache_hit"],
        "misses": counters["inductor"]["fxgraph_cache_miss"],
        "stats": {name: fxpool.stats()[name] for name in ("borrowed", "fallbacks", "compiles")},
        "sidecars": sidecars(),
    }


# ------------------------------------------------------------------------------ scenarios


def graphs() -> dict[str, Any]:
    fxpool.install()
    return {"right": compare(mlp(), transformer()), **facts()}


def dynamic() -> dict[str, Any]:
    """Inductor is there before install() is called."""
    import torch
    import torch._inductor.async_compile
    import torch._inductor.compile_fx_subproc

    fxpool.install()
    model, x = mlp()
    compiled = torch.compile(model, dynamic=True)
    for batch in (4, 7, 9):
        inputs = x[:1].repeat(batch, 1)
        torch.testing.assert_close(compiled(inputs), model(inputs), rtol=1e-4, atol=1e-5)
    return {"right": True, **facts()}


def _attributes() -> dict[str, Any]:
    """What lies in the dictionaries of everything that install() may touch."""
    from torch._inductor import async_compile, compile_fx, compile_fx_ext, compile_fx_subproc

    owners = {
        "AsyncCompile": async_compile.AsyncCompile, "async_compile": async_compile, "compile_fx": compile_fx,
        "sub": compile_fx_subproc._SubprocessFxCompile, "out": compile_fx_ext._OutOfProcessFxCompile,
        "serialized": compile_fx_ext._SerializedFxCompile,
    }  # fmt: skip
    return {f"{owner}.{name}": value for owner, space in owners.items() for name, value in vars(space).items()}


def restored() -> dict[str, Any]:
    before = _attributes()
    fxpool.uninstall()  # of nothing
    fxpool.install()
    first = _attributes()
    fxpool.install()
    second = _attributes()
    fxpool.uninstall()
    after = _attributes()
    fxpool.uninstall()

    def same(one: dict[str, Any], other: dict[str, Any]) -> bool:
        return one.keys() == other.keys() and all(one[name] is other[name] for name in one)

    changed = sorted(name for name in first if first[name] is not before.get(name, first))
    compare(mlp())
    return {"changed": changed, "once": same(first, second), "back": same(before, after), **facts()}


def kill_workers(how_often: int) -> None:
    """From now on, kill workers as soon as they run a graph."""
    from fxpool.lowering.core.runtime import runtime

    seen: set[int] = set()

    def watch() -> None:
        while len(seen) < how_often:
            for job in runtime.pool().status().get("running", []) if jobs else ():
                pid = job["pid"]
                if pid and job["reached"] and not job["sub_job"] and pid not in seen and job["label"] == "graph":
                    seen.add(pid)
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
                    break
            time.sleep(0.002)

    threading.Thread(target=watch, daemon=True).start()


def killed_once() -> dict[str, Any]:
    fxpool.install()
    kill_workers(1)
    return {"right": compare(mlp()), **facts()}


def killed_always() -> dict[str, Any]:
    fxpool.install()
    kill_workers(1000)
    try:
        compare(mlp())
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}", **facts()}
    return {"error": "", **facts()}


def pool_off() -> dict[str, Any]:
    import torch

    fxpool.install()
    fxpool.configure(pool="off", strict=True)
    said = ""
    try:
        compare(mlp())
    except Exception as error:
        said = f"{type(error).__name__}: {error}"
    torch._dynamo.reset()
    fxpool.configure(strict=False)
    return {"strict": said, "right": compare(mlp()), **facts()}


def unsent() -> dict[str, Any]:
    """Graphs that torch does not hand on: of an operator it does not pickle, of one that takes graphs."""
    import torch

    said: list[str] = []

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            said.append(f"{record.getMessage()}{record.exc_info or ''}")

    handler = Handler(logging.WARNING)
    for name in ("torch._inductor", "fxpool"):
        logging.getLogger(name).addHandler(handler)
    fxpool.install()

    def scaled(x: Any) -> Any:
        return x * math.sqrt(x.shape[0])

    def scaled_cosine(x: Any) -> Any:
        return x.cos() * math.sqrt(x.shape[0] + 1)

    def chosen(x: Any) -> Any:
        return torch.cond(x.sum() > 0, lambda x: x.sin(), lambda x: x.cos(), (x,))

    x = torch.randn(4, 3)
    for graph in (scaled, scaled_cosine, chosen, torch.sin):
        torch.testing.assert_close(torch.compile(graph, dynamic=True)(x), graph(x))
    found = facts()
    fxpool.configure(strict=True)
    torch._dynamo.reset()
    try:
        torch.compile(chosen)(x)
        strict = ""
    except Exception as error:
        strict = str(error)
    return {"said": said, "strict": strict, **found}


def compile_error() -> dict[str, Any]:
    """A graph for which there is no compiler."""
    import torch

    fxpool.install()
    os.environ["CXX"] = "/nowhere/g++"
    torch._inductor.config.cpp.cxx = ("/nowhere/g++",)
    try:
        compare(mlp())
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}", **facts()}
    return {"error": "", **facts()}


def background() -> dict[str, Any]:
    """In the mode of the environment: a model, trained before and after its code is there."""
    import torch

    fxpool.install()
    model, x = mlp()
    expected = train(model, x, model)
    compiled = torch.compile(model, options={"max_fusion_size": 32})
    first = train(compiled, x, model)
    waited = fxpool.wait(240)
    torch.testing.assert_close(train(compiled, x, model), expected, rtol=1e-4, atol=1e-5)
    found = {
        "equal": all(map(torch.equal, first, expected)), "states": [swap["state"] for swap in waited],
        "calls": [(swap["eager_calls"], swap["compiled_calls"]) for swap in fxpool.wait(0)], **facts(),
        "how": [graph["outcome"] for graph in fxpool.stats()["graphs"]], "hit": fxpool.stats()["hits"],
    }  # fmt: skip
    fxpool.uninstall()
    return found


def _wrapped(name: str) -> dict[str, Any]:
    """``async+`` or ``progressive+`` where the caller asks for something special: torch's own wrapper, called until it
    has changed over."""
    import torch

    fxpool.install()
    from torch._inductor import compile_fx, compile_fx_async

    setattr(compile_fx, f"fx_compile_{name}", True)
    cls, runs = {
        "async": (compile_fx_async._AsyncFxCompile, "_stat_compiled_runs"),
        "progressive": (compile_fx_async._ProgressiveFxCompile, "_stat_optimized_runs"),
    }[name]

    def special(gm: Any, inputs: Any) -> Any:
        return compile_fx.compile_fx(gm, inputs, ignore_shape_env=False)

    x = torch.randn(4, 24)
    models = [torch.nn.Sequential(torch.nn.Linear(24, n), torch.nn.Tanh()) for n in (8, 16)]
    with torch.no_grad():
        compiled = [(torch.compile(model, backend=special), model) for model in models]
        end = time.monotonic() + 120
        while getattr(cls, runs) < 4 and time.monotonic() < end:
            for run, model in compiled:
                torch.testing.assert_close(run(x), model(x), rtol=1e-4, atol=1e-5)
            time.sleep(0.05)
        changed_over = getattr(cls, runs) >= 4
        found = facts()
        # And where nobody compiles: what torch made to begin with is kept.
        torch._dynamo.reset()
        fxpool.configure(pool="off")
        again = torch.compile(models[0], backend=special)
        for _ in range(3):
            torch.testing.assert_close(again(x), models[0](x), rtol=1e-4, atol=1e-5)
    return {"changed_over": changed_over, **found, "without_pool": facts()["stats"]["fallbacks"]}


def asynchronous() -> dict[str, Any]:
    return _wrapped("async")


def progressive() -> dict[str, Any]:
    return _wrapped("progressive")


# ------------------------------------------------------------------------------ kernels


def where(value: int) -> dict[str, Any]:
    """A job as Inductor's are: a function by name, with plain arguments."""
    from torch._inductor import config

    return {
        "value": value, "pid": os.getpid(), "variable": os.environ.get("OF_THE_ASKER"),
        "size": config.max_autotune, "cache": os.environ["TORCHINDUCTOR_CACHE_DIR"],
    }  # fmt: skip


def fails() -> None:
    raise KeyError("of a kernel")


def dies() -> int:
    if os.getpid() == int(os.environ["ASKER"]):
        return 42
    os.kill(os.getpid(), signal.SIGKILL)
    return 0


def kernels() -> dict[str, Any]:
    """The adapter with plain functions: where they ran, and under what."""
    import install_child

    fxpool.install()
    os.environ["OF_THE_ASKER"] = "yes"
    os.environ["ASKER"] = str(os.getpid())
    from torch._inductor import config
    from torch._inductor.async_compile import AsyncCompile

    ready = AsyncCompile.use_process_pool()
    pool = AsyncCompile.process_pool()
    with config.patch(max_autotune=True):
        first = [pool.submit(install_child.where, number) for number in range(3)]
    made = [future.result(60) for future in first]
    failed = pool.submit(install_child.fails).exception(60)
    died = pool.submit(install_child.dies).exception(60)
    AsyncCompile.wakeup()
    return {
        "ready": ready, "made": made, "me": os.getpid(), "error": [type(failed).__name__, str(failed)],
        "deadly": type(died).__name__, **facts(),
    }  # fmt: skip


def compile_and_tell(load: Any, environment: dict[str, str], configuration: dict[str, Any]) -> Any:
    """Torch's job for a Triton kernel. There is no driver for Triton to ask on this machine, and none is asked."""
    from torch._inductor.runtime.compile_tasks import _worker_compile_triton

    kernel, microseconds = _worker_compile_triton(load, environment, configuration)
    kernel.worker_of_test = os.getpid()
    return kernel, microseconds


def triton() -> dict[str, Any]:
    """``AsyncCompile().triton`` as generated code calls it, up to where a kernel is loaded on the GPU."""
    import install_child
    import triton_child

    fxpool.install()
    from torch._inductor import async_compile

    async_compile._worker_compile_triton = install_child.compile_and_tell
    compiler = async_compile.AsyncCompile()
    sources = [triton_child.kernel(KERNEL.replace("* 2", f"* {n}")) for n in (2, 3)]
    futures = [compiler.triton("doubled", source) for source in sources]
    kernels = [future.future.result(120)[0] for future in futures]
    try:
        broken = compiler.triton("doubled", triton_child.kernel(KERNEL.replace("* 2", "* nobody")))
        wait([broken.future], 120)
        broken.result()  # takes no time limit in 2.11
    except Exception as error:
        said = f"{type(error).__name__}: {error}"
    return {
        "workers_of_kernels": [kernel.worker_of_test for kernel in kernels],
        "candidates": [len(kernel.compile_results) for kernel in kernels],
        "said": said, "me": os.getpid(), **facts(),
    }  # fmt: skip


def main(name: str) -> None:
    warnings.filterwarnings("ignore")
    child.lowerings.install()
    note_jobs()
    report = globals()[name]()
    fxpool.close()
    print(json.dumps(report, default=str))


if __name__ == "__main__":
    main(sys.argv[1])
