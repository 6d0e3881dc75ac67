"""Every reason that fxpool counts, with what it means and what to do about it.

`fxpool.explain()` shows it for the reasons of a process, and docs/counters.md is made from it
(``python docs/reasons_table.py``). A test collects the reasons that the sources count, and fails for one that is
missing.

A name that ends in ``:`` stands for all that begin with it. What comes after ``fx:``, ``return:``, ``borrowed:`` or
``stage:`` is a reason itself, and is looked up as one.
"""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["COUNTERS", "TABLES", "Reason", "find"]


class Reason(NamedTuple):
    """A sentence on what it means, one on what to do (empty: nothing needs to be), and the page of docs/ with more."""

    meaning: str
    advice: str = ""
    page: str = ""


_IMPORTABLE = "Move what the graph names into a module that a worker can import."
_NONE = "Nothing needs to be done."

_CODE = {
    "code_differs": Reason(
        "a worker that imports your modules gets other code than the program has",
        "Find what changes a module after its import: FXPOOL_STRICT=1 raises an error that names it.",
        "custom-code.md",
    ),
    "code_not_importable": Reason(
        "a module of the program's can't be imported in a worker", _IMPORTABLE, "custom-code.md"
    ),
    "code_unknown": Reason(
        "code that the graph is compiled with reads a clock, a file or other state, so that it has no digest",
        "Pass what it reads as an argument or a constant.",
        "custom-code.md",
    ),
    "operator_in_main": Reason(
        "an operator is defined in the main script or a function, with what has no form elsewhere",
        _IMPORTABLE,
        "custom-code.md",
    ),
    "operator_of_unknown_source": Reason(
        "nothing tells which file or library registered an operator",
        "Load it with torch.ops.load_library.",
        "custom-code.md",
    ),
    "defined_in_main": Reason(
        "the graph calls a function or holds a value of the main script", _IMPORTABLE, "custom-code.md"
    ),
}

_HOLDS = "the graph holds {} that has no form for another process"
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
        "Compile the part that uses it apart, or leave it as it is: AOTAutograd's graphs are kept.",
        "limits.md",
    ),
    "fake_constant": Reason("a constant of the graph has no content", "Report it, with the program."),
    "node_metadata:": Reason(
        "a node is marked with something that has no form for another process", "Mark it with plain data."
    ),
    "calling_convention": Reason(
        "the graph's arguments are not one by one", "Hand Dynamo's graphs to the back end as they are."
    ),
    "gpu_cpp_wrapper": Reason(
        "a graph on a GPU is called through C++, and its kernels are compiled when it is first called",
        "Unset cpp_wrapper, or set triton.autotune_at_compile_time, and the graph is compiled in a worker and kept.",
        "limits.md",
    ),
    "region_options": Reason(
        "a nested compile region has options of its own (torch 2.14)", "Give the options to torch.compile instead."
    ),
    "process_group": Reason(
        "the graph names a process group that this process does not have", "Make the group before the call."
    ),
    "nested_int": Reason("the graph computes with the ragged size of a jagged tensor", _NONE, "limits.md"),
    "symbolic_expression": Reason(
        "a size is an expression that can't be saved", "Mark the size as static, or report the expression."
    ),
    "shapes": Reason("what is known of symbolic sizes can't be sent", "Report it, with the program."),
    "symbols_without_shapes": Reason(
        "the graph has symbolic sizes of which nothing is known", "Hand the back end inputs of the tracing context."
    ),
    "triton_kernel_": Reason(
        "a Triton kernel of yours can't be described, or a worker can't import it", _IMPORTABLE, "gpu.md"
    ),
    "not_a_graph": Reason("the back end was handed something that is no graph", "Call it through torch.compile."),
    "no_tracing_context": Reason(
        "the back end was called outside Dynamo", "Call it through torch.compile, or use fxpool.standalone_compile."
    ),
    "inputs": Reason(
        "the back end was handed another number of inputs than the graph has", "Call it through torch.compile."
    ),
    "program": Reason("a worker could not read an exported program", "Save and load it with torch.export to see why."),
    "unpicklable": Reason("it can't be pickled", "Remove what the message names."),
}

_STATE = {
    "dispatch_mode": Reason("a TorchDispatchMode is active while the graph is compiled", "Compile outside it."),
    "functorch_level": Reason(
        "a transform of torch.func is being run while the graph is compiled",
        "Put the transform into the compiled function.",
    ),
    "torch_function_mode": Reason("a TorchFunctionMode is active while the graph is compiled", "Compile outside it."),
    "inference_mode": Reason(
        "inference mode is on while the graph is compiled", "Use torch.no_grad around the first call."
    ),
    "dispatch_keys": Reason("dispatch keys were included or excluded by hand", "Compile outside that block."),
    "default_tensor_type": Reason("the default tensor type is one of a device", "Use torch.set_default_device."),
    "partition_wrapper": Reason("a wrapper for partitions of graphs is registered", _NONE),
    "saved_tensor_hooks": Reason("default hooks for saved tensors are in force", "Compile outside that block."),
    "custom_pass": Reason(
        "a pass in Inductor's configuration has no form for a worker",
        "Define it in a module, as a CustomGraphPass.",
        "custom-code.md",
    ),
    "translation_validation": Reason(
        "translation validation is on, which ties the graph to this process", "Switch it off."
    ),
    "cross_rank_decisions": Reason(
        "AOTAutograd asks the other ranks what they save (_sync_decision_cross_ranks), so each runs it itself", _NONE
    ),
    "fakify_first_call": Reason(
        "DistributedDataParallel splits the model, and traces its parts with real inputs", _NONE, "limits.md"
    ),
    "freezing": Reason("parameters' values are folded into the code after AOTAutograd has run", _NONE, "limits.md"),
    "autograd_cache_off": Reason(
        "enable_autograd_cache is off: AOTAutograd runs in your process, and what workers make of its graphs is kept",
        "Set the switch again.",
        "settings.md",
    ),
    "autograd_function": Reason(
        "a torch.autograd.Function is in the graph: AOTAutograd runs in your process", _NONE, "limits.md"
    ),
    "higher_order_operator_of_autograd": Reason(
        "a higher-order operator ends with AOTAutograd, which runs in your process", _NONE, "limits.md"
    ),
    "checkpoint_context_fn": Reason(
        "a checkpoint's context function has no attribute cache_hash", "Give it one.", "limits.md"
    ),
    "method_of_unknown": Reason("a method is called on something whose class is not known from the graph", _NONE),
    "mode_normal": Reason(
        "in mode normal, a graph that can't be captured as Dynamo made it is compiled as usual", "Use mode subprocess."
    ),
}

_POOL = {
    "pool:": Reason(
        "the job failed in the pool (the name is the error's)",
        "Run fxpool doctor; fxpool status names the server's log.",
        "pool.md",
    ),
    "pool_unavailable": Reason("the server could not be started or reached", "Run fxpool doctor.", "pool.md"),
    "no_worker": Reason("no worker reached the job: the host lacks something", "Run fxpool doctor.", "pool.md"),
    "not_executable": Reason(
        "compiled kernels can't be loaded from their directory (noexec)",
        "Set TMPDIR to a directory that allows it.",
        "pool.md",
    ),
    "runtime_directory_refused": Reason(
        "others could put their server in the place of ours",
        "Set FXPOOL_RUNTIME_DIR to a directory of yours.",
        "security.md",
    ),
}

_FALLBACKS = {
    **_CODE,
    **_GRAPH,
    **_STATE,
    **_POOL,
    "compile_error:": Reason(
        "AOTAutograd or Inductor raised this error in the worker; the next level decides what it means",
        'Try backend="inductor": if it raises the same, the graph is at fault.',
    ),
    "return:": Reason("the worker's result can't be sent back"),
    "output_code": Reason("Inductor made another kind of result than one that can be sent", _NONE),
    "no_result": Reason("AOTAutograd made nothing that can be kept", _NONE),
    "guard": Reason("a guard of the compile can't be replayed in another process", "Report it, with the program."),
    "device_index": Reason("the code names a device that it can't be moved from", _NONE, "gpu.md"),
    "fx:": Reason("after AOTAutograd, which has run in your process"),
    "stage:": Reason("a stage of a progressive mode was left out"),
    "device_needed:": Reason(
        "the worker had to see the GPU (the option that asks it is named, or the question was unanswered)",
        _NONE,
        "gpu.md",
    ),
    "templates_not_timed": Reason(
        "there was no GPU to time the candidates of max_autotune on", "Compile where there is one.", "gpu.md"
    ),
    "pieces:": Reason(
        "a piece of the graph did not compile, and the graph was compiled as one",
        "Report it, with the program.",
        "modes.md",
    ),
    "untested_torch:": Reason(
        "a torch newer than any tested lacks what fxpool needs, and Inductor compiled the graph",
        "Update fxpool.",
        "limits.md",
    ),
    "loader:": Reason("a part was not linked, and torch loads or compiles it", _NONE),
    "async:": Reason(
        "a compile in the background failed, and the graph stays eager",
        "Call it in mode subprocess to see the error.",
        "modes.md",
    ),
    "progressive:": Reason(
        "a stage failed in the background, and the one before stays in use",
        "Compile with that stage's options to see the error.",
        "modes.md",
    ),
    "borrowed:triton_kernel": Reason(
        "after fxpool.install(), a graph with a Triton kernel of the program's was compiled as usual",
        _NONE,
        "install.md",
    ),
    "borrowed:not_picklable": Reason(
        "after fxpool.install(), a graph that can't be pickled was compiled as usual", _NONE, "install.md"
    ),
    "borrowed:not_sent": Reason(
        "after fxpool.install(), torch did not send a graph, and does not say why", _NONE, "install.md"
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
            "autograd_function",
            "higher_order_operator_of_autograd",
            "checkpoint_context_fn",
        )
    },
    "symbolic_expression": _GRAPH["symbolic_expression"],
    "cache_off": Reason(
        "the option cache=False says so, or there is no usable cache directory",
        "Leave the option out, or see switched_off.",
    ),
    "caches_disabled": Reason(
        "torch's force_disable_caches says so, or fx_graph_cache=False", "Unset the switch.", "settings.md"
    ),
    "compiled_fast": Reason("it was compiled in less time than the setting cache_min_seconds", _NONE, "cache.md"),
    "artifact_not_saved": Reason(
        "an entry was gone when torch.compiler.save_cache_artifacts() wanted it, or this torch takes none of fxpool's",
        "Save before the cache is cleared; with an untested torch, copy the cache directory instead.",
    ),
    "artifact_not_loaded": Reason(
        "an entry that torch.compiler.load_cache_artifacts() brought was damaged or could not be written",
        "Run fxpool doctor; if that finds nothing, save the artifacts again.",
    ),
    "cache_directory_refused": Reason(
        "the cache directory may not be used: others can write to it", "Run fxpool doctor.", "security.md"
    ),
    "store_write_failed": Reason(
        "the entry could not be written", "Run fxpool doctor; the warning has the system's reason."
    ),
    "function": Reason(
        "the graph calls a function whose code has no digest",
        "Register it as an operator (torch.library.custom_op), or mark it with torch.fx.wrap.",
        "custom-code.md",
    ),
    "torchbind": Reason(
        "the graph calls a TorchScript object, whose state has no digest", "Pass what it holds as tensors."
    ),
    "higher_order_operator": Reason("torch calls this higher-order operator uncacheable", _NONE, "limits.md"),
    "source": Reason(
        "code that the graph is compiled with reads a clock, a file or other state, so that it has no digest",
        "Pass what it reads as an argument or a constant.",
        "custom-code.md",
    ),
    "custom_pass_without_uuid": Reason(
        "a pass in Inductor's configuration has neither a uuid nor a digest",
        "Give it a uuid (CustomGraphPass).",
        "custom-code.md",
    ),
    "configuration": Reason(
        "a value of the configuration has no form that is the same in every process", "Set the option to plain data."
    ),
    "triton_override": Reason("TRITON_KERNEL_OVERRIDE or TRITON_SWAP_MIR has Triton take code from files", "Unset it."),
    "fresh_cache_over": Reason(
        "torch's fresh_cache() had ended when a compile in the background had", "Call fxpool.wait() within it."
    ),
    "compiler_unknown": Reason("it can't be told what runs as the C++ compiler", "Set CXX to the compiler itself."),
    "compiler_changed": Reason(
        "the C++ compiler was changed while a graph was compiled",
        "Set CXX to the compiler itself, if it happens each time.",
    ),
    "choices_not_kept": Reason("the times of max_autotune could not be kept", "Run fxpool doctor."),
    "quarantine_not_kept": Reason(
        "the record of a graph that killed workers could not be written", "Run fxpool doctor."
    ),
    "unknown": Reason("the graph has no key, for no reason that is known", "Report it, with the program."),
}

_SWITCHED_OFF = {
    **{name: reason for name, reason in _POOL.items() if not name.endswith(":")},
    "pool:": _POOL["pool:"],
    "cache_directory_refused": _BYPASSES["cache_directory_refused"],
    "cache_base_refused": Reason(
        "the directory of cache_base is not yours or root's, or open to others", "Run fxpool doctor.", "security.md"
    ),
    "cache_not_written": Reason(
        "the cache directory can't be written", "Free some space, or set FXPOOL_CACHE_DIR to another directory."
    ),
    "compiler_changed": _BYPASSES["compiler_changed"],
    "no_remote_cache": Reason(
        "torch's switch asks for a remote cache, and there is no address",
        "Set FXPOOL_REMOTE_CACHE or Inductor's variables for Redis, or unset the switch.",
        "remote.md",
    ),
    "remote_refused": Reason(
        "there is an address of a remote cache, and no key file, no client for it, or one that can't be trusted",
        "Do what the warning says.",
        "remote.md",
    ),
}

_EAGER = {
    "quarantined": Reason(
        "the graph killed its workers before, and runs eagerly",
        "Read the log that the warning names, then fxpool cache quarantine --release KEY.",
        "pool.md",
    ),
    "worker_died": Reason(
        "the graph killed its workers, and runs eagerly", "Read the log that the warning names.", "pool.md"
    ),
    "overlap": Reason(
        "inputs overlapped in memory in another way than where the graph was compiled",
        "Clone them before the call, if it happens often.",
    ),
}

#: Counters whose reasons are kept here, in the order in which they are shown.
COUNTERS = ("switched_off", "bypasses", "fallbacks", "eager_calls")
TABLES: dict[str, dict[str, Reason]] = {
    "switched_off": _SWITCHED_OFF,
    "bypasses": _BYPASSES,
    "fallbacks": _FALLBACKS,
    "eager_calls": _EAGER,
}
# Before a reason that is one itself.
_BEFORE_OTHERS = ("fx:", "return:", "borrowed:", "stage:")


def find(counter: str, name: str) -> Reason | None:
    """Return what a counted reason means; None for one that is not known here."""
    table = TABLES.get(counter, {})
    if name in table:
        return table[name]
    prefix = next((known for known in table if known[-1] in ":_" and name.startswith(known)), None)
    if prefix is None:
        return None
    outer, rest = table[prefix], name[len(prefix) :]
    inner = find(counter, rest) if prefix in _BEFORE_OTHERS else None
    if inner is None:
        return outer
    return Reason(f"{outer.meaning}: {inner.meaning}", inner.advice, inner.page or outer.page)
