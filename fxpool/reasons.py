"""Explains each reason that fxpool counts: its meaning, and advice.

`fxpool.explain()` shows the explanations for the reasons of a process, and docs/counters.md is generated from them
(``python docs/reasons_table.py``). A test collects the reasons counted in the sources, and fails if an explanation is
missing.

A name that ends in ``:`` or ``_`` is a prefix. The rest of a name after ``fx:``, ``return:``, ``borrowed:`` or
``stage:`` is looked up as a reason, too.
"""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["COUNTERS", "NO_REASONS", "TABLES", "Reason", "find"]


class Reason(NamedTuple):
    """The meaning of a reason, advice (may be empty), and a page of docs/ about it (may be empty)."""

    meaning: str
    advice: str = ""
    page: str = ""


_IMPORTABLE = "Move the code into a module that a worker can import."
_NONE = "No action needed."

_CODE = {
    "code_differs": Reason(
        "a worker that imports the program's modules gets different code",
        "Set FXPOOL_STRICT=1 to get an error that names the code, and do not change modules after their import.",
        "custom-code.md",
    ),
    "code_not_importable": Reason("a worker cannot import a module of the program", _IMPORTABLE, "custom-code.md"),
    "code_unknown": Reason(
        "code that the compile runs is not proven to be the same in another process; the log names the part",
        "Write that part with functions and plain values, or pass what it reads as an argument.",
        "custom-code.md",
    ),
    "torch_changed": Reason(
        "the program replaced functions of torch that a compile runs",
        "Register an operator, a decomposition or a lowering instead.",
        "custom-code.md",
    ),
    "operator_in_main": Reason(
        "an operator is defined in the main script or a function, with values that cannot be sent",
        _IMPORTABLE,
        "custom-code.md",
    ),
    "operator_of_unknown_source": Reason(
        "the file or library that registered an operator is unknown",
        "Load it with torch.ops.load_library.",
        "custom-code.md",
    ),
    "defined_in_main": Reason(
        "the graph uses a function or value defined in the main script", _IMPORTABLE, "custom-code.md"
    ),
}

_HOLDS = "the graph holds {} that cannot be sent to another process"
_GRAPH = {
    "function": Reason(
        _HOLDS.format("a function"),
        "Give it a name in a module, or register it as an operator (torch.library.custom_op).",
        "custom-code.md",
    ),
    "call_module": Reason(
        _HOLDS.format("a module that Dynamo did not trace into"), "Remove torch._dynamo.allow_in_graph from it."
    ),
    "attribute": Reason(_HOLDS.format("an attribute"), "Pass it as an argument."),
    "value": Reason(_HOLDS.format("a value"), "Pass it as a number, a string or a tensor."),
    "tensor": Reason(
        _HOLDS.format("a tensor (a subclass, sparse, nested or quantized)"),
        "Compile that part separately, or leave it: the graphs after AOTAutograd are cached.",
        "limits.md",
    ),
    "fake_constant": Reason("a constant of the graph has no data", "Report it, with the program."),
    "node_metadata:": Reason("the metadata of a node cannot be sent to another process", "Use plain data as metadata."),
    "calling_convention": Reason(
        "the graph has a custom calling convention", "Pass Dynamo's graphs to the back end unchanged."
    ),
    "gpu_cpp_wrapper": Reason(
        "a GPU graph has a C++ wrapper that compiles its kernels at the first call",
        "Unset cpp_wrapper or set triton.autotune_at_compile_time, to compile in a worker and cache the graph.",
        "limits.md",
    ),
    "region_options": Reason(
        "a nested compile region has its own options (torch 2.14)", "Pass the options to torch.compile instead."
    ),
    "process_group": Reason(
        "the graph names a process group that this process does not have", "Create the group before the call."
    ),
    "nested_int": Reason("the graph computes with the ragged size of a jagged tensor", _NONE, "limits.md"),
    "symbolic_expression": Reason(
        "a size is an expression that cannot be serialized", "Mark the size as static, or report the expression."
    ),
    "shapes": Reason("facts about symbolic sizes cannot be sent", "Report it, with the program."),
    "symbols_without_shapes": Reason(
        "the graph has symbolic sizes without a ShapeEnv", "Pass inputs of the tracing context to the back end."
    ),
    "triton_kernel_": Reason(
        "a user-defined Triton kernel cannot be described, or a worker cannot import it", _IMPORTABLE, "gpu.md"
    ),
    "not_a_graph": Reason(
        "the back end was called with something other than a graph", "Call it through torch.compile."
    ),
    "no_tracing_context": Reason(
        "the back end was called outside Dynamo", "Call it through torch.compile, or use fxpool.standalone_compile."
    ),
    "inputs": Reason("the number of inputs differs from the graph's", "Call the back end through torch.compile."),
    "program": Reason(
        "a worker could not load an exported program", "Save and load it with torch.export to see the error."
    ),
    "no_level:": Reason(
        "a worker and an earlier process failed to compile the graph (with the error's class), so this process compiles"
        " it, and raises the same error if nothing has changed",
        "Correct the graph, or the lowering or pass that the error names.",
    ),
    "aot_inductor": Reason("AOTInductor compiles a package in your process", "Use fxpool.aot_compile.", "install.md"),
    "no_shapes": Reason("compile_fx was called directly, not through torch.compile", _NONE, "install.md"),
    "decompositions": Reason(
        "compile_fx was called with a table of decompositions", "Register the decompositions instead.", "serving.md"
    ),
    "unpicklable": Reason("the result cannot be pickled", "Remove the object named in the message."),
}

_STATE = {
    "dispatch_mode": Reason("a TorchDispatchMode is active during the compile", "Compile outside it."),
    "functorch_level": Reason(
        "a transform of torch.func is active during the compile",
        "Move the transform into the compiled function.",
    ),
    "torch_function_mode": Reason("a TorchFunctionMode is active during the compile", "Compile outside it."),
    "compiler_bisector": Reason("torch's CompilerBisector is enabled: each graph is compiled in your process", _NONE),
    "save_args": Reason("Inductor's save_args is on: each graph is compiled in your process, which writes them", _NONE),
    "graph_lowering_watched": Reason(
        "a tool of torch's looks at lowered graphs (run_and_get_graph_lowering), so they are lowered in your process",
        _NONE,
    ),
    "dispatch_keys": Reason("dispatch keys are included or excluded explicitly", "Compile outside that block."),
    "default_tensor_type": Reason("the default tensor type is that of a device", "Use torch.set_default_device."),
    "partition_wrapper": Reason("a wrapper for graph partitions is registered", _NONE),
    "saved_tensor_hooks": Reason("default hooks for saved tensors are active", "Compile outside that block."),
    "custom_pass": Reason(
        "a pass in Inductor's configuration cannot be sent to a worker",
        "Define it in a module, as a CustomGraphPass.",
        "custom-code.md",
    ),
    "translation_validation": Reason(
        "translation validation is on, which ties the graph to this process", "Turn it off."
    ),
    "cross_rank_decisions": Reason(
        "AOTAutograd coordinates saved tensors between ranks (_sync_decision_cross_ranks), so it runs in each process",
        _NONE,
    ),
    "differs_between_ranks": Reason(
        "the compile asks for a fact that only one rank has (its number, symmetric memory), so it runs in each process",
        _NONE,
    ),
    "fakify_first_call": Reason(
        "DistributedDataParallel splits the model and traces its parts with real inputs", _NONE, "limits.md"
    ),
    "freezing": Reason("freezing folds the values of parameters into the code after AOTAutograd", _NONE, "limits.md"),
    "autograd_cache_off": Reason(
        "enable_autograd_cache is off: AOTAutograd runs in your process, and the graphs it returns are cached",
        "Turn it on again.",
        "settings.md",
    ),
    "higher_order_operator_of_autograd": Reason(
        "a higher-order operator does not outlast AOTAutograd, which runs in your process", _NONE, "limits.md"
    ),
    "checkpoint_context_fn": Reason(
        "a checkpoint's context function has no attribute cache_hash", "Give it one.", "limits.md"
    ),
    "method_of_unknown": Reason("a method is called on an object of unknown class", _NONE),
    "mode_normal": Reason(
        "in mode normal, a graph that cannot be captured before AOTAutograd is compiled as usual",
        "Use mode subprocess.",
    ),
}

_POOL = {
    "pool:": Reason(
        "the job failed in the pool (with the error's name)",
        "Run fxpool doctor; fxpool status names the server's log.",
        "pool.md",
    ),
    "pool_unavailable": Reason("the server could not be started or reached", "Run fxpool doctor.", "pool.md"),
    "no_worker": Reason(
        "no worker could start the job: the host is out of a resource (open files, processes, memory, disk)",
        "Run fxpool doctor.",
        "pool.md",
    ),
    "shortage:": Reason(
        "a compile failed because the host was short of something (with the error's name: EAGAIN is processes, ENOMEM"
        " memory, ENOSPC disk space), or because something ended the compiler (SIGKILL)",
        "Set FXPOOL_WORKERS or FXPOOL_MEMORY_HIGH_WATERMARK to a smaller value, or raise the limit.",
        "pool.md",
    ),
    "torch_tables_unknown": Reason(
        "no worker could tell which entries of Inductor's tables are torch's, so only processes that import Inductor"
        " before fxpool find this process's graphs",
        "Import fxpool before torch._inductor, or run fxpool doctor.",
        "pool.md",
    ),
    "not_executable": Reason(
        "compiled kernels cannot be loaded from their directory (noexec)",
        "Set FXPOOL_CACHE_DIR or TMPDIR to a directory that allows execution.",
        "pool.md",
    ),
    "runtime_directory_refused": Reason(
        "the runtime directory cannot be used, or other users could replace the server in it",
        "Set FXPOOL_RUNTIME_DIR to a directory that you own.",
        "security.md",
    ),
}

_FALLBACKS = {
    **_CODE,
    **_GRAPH,
    **_STATE,
    **_POOL,
    "compile_error:": Reason(
        "AOTAutograd or Inductor raised this error in the worker; the next level is tried",
        'Try backend="inductor": if it raises the same error, the graph is at fault.',
    ),
    "return:": Reason("the worker's result cannot be sent back"),
    "output_code": Reason("Inductor returned a kind of result that cannot be sent", _NONE),
    "no_result": Reason("AOTAutograd returned no result that can be stored", _NONE),
    "guard": Reason("a guard of the compile cannot be replayed in another process", "Report it, with the program."),
    "device_index": Reason("the code is bound to one device", _NONE, "gpu.md"),
    "fx:": Reason("after AOTAutograd, which ran in your process"),
    "stage:": Reason("a stage of a progressive mode was skipped"),
    "device_needed:": Reason(
        "the worker had to see the GPU (the name is the option that needs it, or says that a query had no answer)",
        _NONE,
        "gpu.md",
    ),
    "templates_not_timed": Reason(
        "no GPU was available to time the candidates of max_autotune", "Compile on a machine with a GPU.", "gpu.md"
    ),
    "pieces:": Reason(
        "a piece of the graph failed to compile, so the graph was compiled as a whole",
        "Report it, with the program.",
        "modes.md",
    ),
    "untested_torch:": Reason(
        "an untested torch lacks something that fxpool needs, so stock Inductor compiled the graph",
        "Update fxpool.",
        "limits.md",
    ),
    "loader:": Reason("a part was not linked; torch loads or compiles it", _NONE),
    "async:": Reason(
        "a background compile failed, so the graph stays eager",
        "Call it in mode subprocess to see the error.",
        "modes.md",
    ),
    "progressive:": Reason(
        "a stage failed in the background, so the previous stage stays in use",
        "Compile with that stage's options to see the error.",
        "modes.md",
    ),
    "borrowed:triton_kernel": Reason(
        "after fxpool.install(), a graph with a user-defined Triton kernel was compiled as usual",
        _NONE,
        "install.md",
    ),
    "borrowed:not_picklable": Reason(
        "after fxpool.install(), a graph that cannot be pickled was compiled as usual", _NONE, "install.md"
    ),
    "borrowed:not_sent": Reason(
        "after fxpool.install(), torch did not send a graph, without giving a reason", _NONE, "install.md"
    ),
    "borrowed:": Reason("after fxpool.install(), stock Inductor compiled it as usual", "", "install.md"),
    "device_needed": Reason("the worker had to see the GPU", _NONE, "gpu.md"),
}

_BYPASSES = {
    **{
        name: _STATE[name]
        for name in (
            "fakify_first_call",
            "method_of_unknown",
            "autograd_cache_off",
            "higher_order_operator_of_autograd",
            "checkpoint_context_fn",
        )
    },
    "symbolic_expression": _GRAPH["symbolic_expression"],
    "cache_off": Reason(
        "the option cache=False is set, or no cache directory can be used",
        "Remove the option, or see switched_off.",
    ),
    "caches_disabled": Reason(
        "torch's force_disable_caches is set, or fx_graph_cache is False", "Unset the switch.", "settings.md"
    ),
    "compiled_fast": Reason("the compile took less time than the setting cache_min_seconds", _NONE, "cache.md"),
    "artifact_not_saved": Reason(
        "an entry was missing for torch.compiler.save_cache_artifacts(), or this torch accepts no artifacts of fxpool",
        "Save before the cache is cleared; with an untested torch, copy the cache directory instead.",
    ),
    "artifact_not_loaded": Reason(
        "an entry from torch.compiler.load_cache_artifacts() was damaged or could not be written",
        "Run fxpool doctor; if it finds no problem, save the artifacts again.",
    ),
    "cache_directory_refused": Reason(
        "the cache directory cannot be used: its owner, its mode or a directory above it, as the warning says",
        "Do as the warning says, or run fxpool doctor, which says it as well.",
        "security.md",
    ),
    "store_write_failed": Reason(
        "the entry could not be written", "See the warning for the system's error, and run fxpool doctor."
    ),
    "function": Reason(
        "the graph calls a function whose code cannot be digested",
        "Register it as an operator (torch.library.custom_op), or mark it with torch.fx.wrap.",
        "custom-code.md",
    ),
    "torchbind": Reason(
        "the graph calls a TorchScript object, whose state cannot be digested", "Pass its state as tensors."
    ),
    "higher_order_operator": Reason("torch marks this higher-order operator as uncacheable", _NONE, "limits.md"),
    "source": _CODE["code_unknown"],
    "torch_changed": _CODE["torch_changed"],
    "custom_pass_without_uuid": Reason(
        "a pass in Inductor's configuration has neither a uuid nor a digest",
        "Give it a uuid (CustomGraphPass).",
        "custom-code.md",
    ),
    "configuration": Reason(
        "a value of the configuration differs in form between processes", "Set the option to plain data."
    ),
    "triton_override": Reason(
        "TRITON_KERNEL_OVERRIDE or TRITON_SWAP_MIR makes Triton load code from files", "Unset it."
    ),
    "fresh_cache_over": Reason(
        "torch's fresh_cache() ended before a background compile did", "Call fxpool.wait() inside it."
    ),
    "compiler_unknown": Reason(
        "the program behind the C++ compiler's command, or the headers that it includes, are unknown",
        "Set CXX to the compiler itself, and CPATH to absolute paths.",
    ),
    "headers_unlisted": Reason(
        "generated C++ includes a header that Inductor's sources do not name",
        "Put the code of that header into the template or lowering that includes it.",
    ),
    "compiler_changed": Reason(
        "the C++ compiler changed during a compile",
        "If it happens every time, set CXX to the compiler itself.",
    ),
    "choices_not_kept": Reason("the timings of max_autotune could not be stored", "Run fxpool doctor."),
    "quarantine_not_kept": Reason(
        "the record of a graph that killed workers could not be written", "Run fxpool doctor."
    ),
    "unknown": Reason("the graph has no key, for an unknown reason", "Report it, with the program."),
}

_SWITCHED_OFF = {
    **{name: reason for name, reason in _POOL.items() if not name.endswith(":")},
    "pool:": _POOL["pool:"],
    "cache_directory_refused": _BYPASSES["cache_directory_refused"],
    "cache_is_temporary": Reason(
        "the home cannot hold the cache, so compiled graphs are stored under the temporary directory",
        "Set FXPOOL_CACHE_DIR to a directory that you own and that stays.",
        "images.md",
    ),
    "cache_base_refused": Reason(
        "the directory of cache_base cannot be used: its owner, its mode or a directory above it, as the warning says",
        "Run fxpool doctor.",
        "security.md",
    ),
    "cache_not_written": Reason(
        "the cache directory is not writable", "Free some space, or set FXPOOL_CACHE_DIR to another directory."
    ),
    "compiler_changed": _BYPASSES["compiler_changed"],
    "no_remote_cache": Reason(
        "a switch of torch enables a remote cache, but no address is set",
        "Set FXPOOL_REMOTE_CACHE or Inductor's variables for Redis, or unset the switch.",
        "remote.md",
    ),
    "farm_refused": Reason(
        "a farm is configured without a key file that can be trusted",
        "Follow the warning.",
        "farm.md",
    ),
    "remote_refused": Reason(
        "a remote cache is configured without a key file that can be trusted, or without its client package",
        "Follow the warning.",
        "remote.md",
    ),
}

_EAGER = {
    "quarantined": Reason(
        "the graph killed its workers earlier and runs eagerly",
        "Read the log named in the warning, then run fxpool cache quarantine --release KEY.",
        "pool.md",
    ),
    "worker_died": Reason(
        "the graph killed its workers and runs eagerly", "Read the log named in the warning.", "pool.md"
    ),
    "recorded": Reason(
        "the graph was recorded for fxpool build (the setting capture)",
        "Run the program without the setting.",
        "farm.md",
    ),
    "overlap": Reason(
        "inputs overlap in memory differently than at the compile",
        "If it happens often, clone them before the call.",
    ),
}

_OBJECT = "The detail names it; keep such objects out of compiled functions."
_FRAMES = {
    "unfit": Reason(
        "a stored function is of other code, objects or settings; the first difference is the example",
        _NONE,
        "modes.md",
    ),
    "wrong": Reason(
        "a stored function is not what Dynamo makes of it now; it was removed, and all processes trace it from now on",
        "Please report it. fxpool cache quarantine releases it.",
        "modes.md",
    ),
    "refused:set_aside": Reason(
        "a stored form of this function was wrong before, so that it is traced",
        "fxpool cache quarantine shows and releases it.",
        "modes.md",
    ),
    "refused:inductor": Reason(
        "after fxpool.install(), graphs stay in the process: TORCHINDUCTOR_FX_COMPILE_MODE is not subprocess",
        "Set it to subprocess.",
        "install.md",
    ),
    "refused:collectives": Reason(
        "ranks exchange what they trace (an option of Dynamo), and wait for each other", _NONE
    ),
    "refused:no_cache": Reason("the cache is off", _NONE),
    "refused:no_code": Reason("Dynamo left the function as it was", _NONE),
    "refused:guard": Reason("a guard that no other process can make again", _OBJECT),
    "refused:object": Reason(
        "no other process can tell whether it has the same object, or Dynamo took a result for a constant", _OBJECT
    ),
    "refused:unproven": Reason("a fact made no difference when it was changed in a copy", "Please report it."),
    "refused:own_guards": Reason("the guards, made again, do not hold in this process", "Please report it."),
    "refused:graph": Reason(
        "a graph's entry is not in the cache, or loading it takes more than the entry", _NONE, "counters.md"
    ),
    "refused:code": Reason("a traced function that no module names, or byte code that can't be stored", _IMPORTABLE),
    "refused:global": Reason("an object that Dynamo keeps for the byte code", _NONE),
    "refused:profiler": Reason(
        "a profiler or debugger has what Python has for hearing calls, so that tracing can't be observed",
        "Compile before the profiler starts.",
        "modes.md",
    ),
    "refused:torch": Reason("torch can't serialize the function either", _NONE),
    "refused:": Reason("the function can't be looked up or kept", _NONE),
    "error:": Reason("an error in fxpool, which is logged; the function is traced", "Please report it."),
}

#: Counters whose reasons are explained here, in display order.
COUNTERS = ("switched_off", "bypasses", "fallbacks", "eager_calls", "frames")
TABLES: dict[str, dict[str, Reason]] = {
    "switched_off": _SWITCHED_OFF,
    "bypasses": _BYPASSES,
    "fallbacks": _FALLBACKS,
    "eager_calls": _EAGER,
    "frames": _FRAMES,
}
# Prefixes that are followed by another reason.
_BEFORE_OTHERS = ("fx:", "return:", "borrowed:", "stage:", "refused:")
#: Names of ``frames`` that are counts of successes.
NO_REASONS = frozenset(("served", "traced", "kept", "verified", "other_sizes"))


def find(counter: str, name: str) -> Reason | None:
    """Return the explanation of a counted reason; None for an unknown reason."""
    table = TABLES.get(counter, {})
    if name in table:
        return table[name]
    prefix = next((known for known in table if known[-1] in ":_" and name.startswith(known)), None)
    if prefix is None:
        return None
    outer, rest = table[prefix], name[len(prefix) :]
    inner = find("bypasses" if counter == "frames" else counter, rest) if prefix in _BEFORE_OTHERS else None
    if inner is None:
        return outer
    return Reason(f"{outer.meaning}: {inner.meaning}", inner.advice, inner.page or outer.page)
