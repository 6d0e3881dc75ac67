"""One process of a case: imports the program ``hunted``, calls it, and saves what came out.

The program's module has

    inputs()      new arguments for each call
    run(*args)    the compiled function; or `build()`, which returns it
    around()      optional: a context manager for the calls
    state()       optional: what the program has besides its outputs (recorded lines, buffers), after a call

As ``python -m campaigns.hunt.phases --serve`` it forks for every request, after it has imported torch and Dynamo; what
`fxpool` or Inductor themselves need is imported ahead as well, because no program can tell.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import json
import os
import random
import sys
import time
import traceback
import warnings
from collections.abc import Callable
from typing import Any

SEED = 1234
_TESTS = os.path.realpath(os.path.join(os.path.dirname(__file__), "..", ".."))
_NOT_COMPILED = "HUNT_NOT_COMPILED_AHEAD"


def main(arguments: list[str]) -> None:
    """Serve requests, or run the one that is given as JSON."""
    warnings.filterwarnings("ignore")
    sys.dont_write_bytecode = True
    if arguments[:1] == ["--serve"]:
        from harness.loader import serve

        _import_ahead(arguments[1:] or os.environ.get("HUNT_AHEAD", "").split())
        serve(main)
        return
    request = json.loads(arguments[0])
    begun = time.perf_counter()
    report = run(request)
    report["seconds"] = time.perf_counter() - begun
    if os.environ.get("HUNT_ECHO_PATH"):
        report["path"] = sys.path
    print(json.dumps(report, default=str))
    sys.stdout.flush()
    sys.stderr.flush()
    # Exit handlers are called; taking torch's modules apart would be another second.
    atexit._run_exitfuncs()
    os._exit(0)


def _import_ahead(names: list[str]) -> None:
    import torch
    import torch._dynamo

    torch.set_num_threads(1)
    for name in names:
        importlib.import_module(name)
    if "torch._inductor.compile_fx" in names and not os.environ.get(_NOT_COMPILED) and not _compile_ahead():
        # A process with threads can't be forked: begin again without, and each process asks and traces for itself.
        os.environ[_NOT_COMPILED] = "1"
        os.execv(sys.executable, [sys.executable, "-m", "campaigns.hunt.phases", "--serve", *names])
    gc.collect()
    gc.freeze()


def _compile_ahead() -> bool:
    """Have stock Inductor ask what the CPU can do and trace its patterns, which takes 3 s of each process otherwise.

    Returns whether this process may still be forked: beside a GPU, a build of torch for CUDA was seen to start threads.
    """
    import torch
    import torch._inductor.decomposition

    from fxpool.torch_compat.cuda import no_devices

    with contextlib.suppress(ImportError):  # it would start a thread beside each progress bar
        import tqdm

        tqdm.tqdm.monitor_interval = 0
    # Of a build for CUDA, autograd would start threads before its first backward. The programs run on the CPU.
    with no_devices.out_of_reach():
        x = torch.ones(8, requires_grad=True)
        torch.compile(lambda x: x.sin().sum(), backend="inductor")(x)
        with torch.no_grad():
            torch.compile(lambda x: x.cos().sum(), backend="inductor")(x)
    torch._dynamo.reset()
    # A table that is made at the first compile: what a program registers before its own first one belongs into it.
    torch._inductor.decomposition.fast_random_decomps.cache_clear()
    with open("/proc/self/status") as file:
        return next(line.split()[1] for line in file if line.startswith("Threads:")) == "1"


def run(request: dict[str, Any]) -> dict[str, Any]:
    """Import the program and make its calls; saves the results and returns what is to be said of them."""
    directory = request["directory"]
    sys.path[:] = [os.path.join(directory, part) if part else directory for part in request["path"]] + [
        path for path in sys.path if path and not _is_ours(path)
    ]
    os.chdir(os.path.join(directory, request["cwd"]))
    import torch

    torch.set_num_threads(1)
    torch._dynamo.config.recompile_limit = 64
    results: list[Any] = []
    try:
        program = importlib.import_module("hunted")
    except Exception as error:
        results.append(_error("import", error))
    else:
        compiled: Callable[..., Any] | None = None
        for statements in request["calls"]:
            try:
                exec(compile(statements, "<change>", "exec"), vars(program))
                if compiled is None or request["anew"]:
                    torch._dynamo.reset()
                    compiled = _compiled(program, request)
                results.append(_call(program, compiled, request))
            except Exception as error:
                results.append(_error("call", error))
    torch.save(results, request["save"])
    report: dict[str, Any] = {"errors": [result["error"] for result in results if "error" in result]}
    if request["backend"] == "fxpool":
        import fxpool

        fxpool.wait(120)
        report["stats"] = fxpool.stats()
    return report


def _is_ours(path: str) -> bool:
    return os.path.realpath(path) == _TESTS


def _error(where: str, error: Exception) -> dict[str, Any]:
    last = traceback.format_exc().strip().splitlines()
    return {"error": f"{where}: {type(error).__name__}: {error}"[:2000], "traceback": "\n".join(last[-40:])}


def _compiled(program: Any, request: dict[str, Any]) -> Callable[..., Any]:
    import torch

    target = program.build() if hasattr(program, "build") else program.run
    program.target = target
    if request["backend"] == "none":
        return target
    options = {"mode": request["mode"]} if request["mode"] else None
    return torch.compile(target, backend=request["backend"], dynamic=request["dynamic"], options=options)


def _call(program: Any, compiled: Callable[..., Any], request: dict[str, Any]) -> dict[str, Any]:
    """Outputs, gradients, and what else the call changed."""
    import torch
    from torch.utils import _pytree as pytree

    torch.manual_seed(SEED)
    random.seed(SEED)
    arguments = program.inputs()
    leaves = [leaf for leaf in pytree.tree_leaves(arguments) if isinstance(leaf, torch.Tensor)]
    if isinstance(program.target, torch.nn.Module):
        leaves += [*program.target.parameters(), *program.target.buffers()]
    around = program.around() if hasattr(program, "around") else contextlib.nullcontext()
    with around:
        if request["training"]:
            outputs = compiled(*arguments)
        else:
            with torch.no_grad() if getattr(program, "no_grad", True) else contextlib.nullcontext():
                outputs = compiled(*arguments)
        found: dict[str, Any] = {"outputs": [_plain(leaf) for leaf in pytree.tree_leaves(outputs)]}
        found["aliases"] = _aliases(pytree.tree_leaves(outputs), pytree.tree_leaves(arguments))
        if request["training"]:
            differentiable = [
                leaf for leaf in pytree.tree_leaves(outputs) if isinstance(leaf, torch.Tensor) and leaf.requires_grad
            ]
            if differentiable:
                loss = sum((leaf.double() * (number + 1.5)).sum() for number, leaf in enumerate(differentiable))
                loss.backward()
            found["gradients"] = [_plain(leaf.grad) for leaf in leaves if leaf.is_leaf]
            for leaf in leaves:
                leaf.grad = None
    found["inputs"] = [_plain(leaf) for leaf in leaves]
    if hasattr(program, "state"):
        found["state"] = [_plain(leaf) for leaf in pytree.tree_leaves(program.state())]
    found["random"] = _plain(torch.rand(1)) if getattr(program, "compare_random", False) else None
    return found


def _aliases(outputs: list[Any], arguments: list[Any]) -> list[str]:
    """Which outputs are an earlier output or an argument, or share its storage."""
    import torch

    leaves = [(f"argument {number}", leaf) for number, leaf in enumerate(arguments)]
    leaves += [(f"output {number}", leaf) for number, leaf in enumerate(outputs)]
    tensors = [(name, leaf) for name, leaf in leaves if type(leaf) in (torch.Tensor, torch.nn.Parameter)]
    tensors = [(name, leaf) for name, leaf in tensors if leaf.layout == torch.strided]
    aliases = []
    for number, (name, leaf) in enumerate(tensors):
        for other, earlier in tensors[:number] if name.startswith("output") else []:
            if leaf.untyped_storage()._cdata == earlier.untyped_storage()._cdata:
                aliases.append(f"{name} {'is' if leaf is earlier else 'shares'} {other}")
    return aliases


def _plain(value: Any) -> Any:
    """A copy that stays as it is, without hooks or classes of the program's."""
    import torch

    if isinstance(value, torch.Tensor):
        if type(value) not in (torch.Tensor, torch.nn.Parameter):
            return [_plain(getattr(value, name)) for name in value.__tensor_flatten__()[0]]
        return {"tensor": value.detach().clone(), "requires_grad": value.requires_grad}
    if value is None or isinstance(value, (bool, int, float, complex, str)):
        return value
    return repr(type(value))


if __name__ == "__main__":
    main(sys.argv[1:])
