"""The wall around torch's private names: all uses of torch's internals in fxpool are in this folder.

    patching     replaces attributes of torch's or Triton's; calls functions once a torch module has been imported
    versions     supported releases of torch, and the refusal of others
    dynamo       Dynamo, symbolic shapes and fake tensors
    frames       traced functions: byte code with its guards
    operators    operators by name, and a program's registrations for them
    changes      a program's changes in torch's modules
    state        configuration and switches that affect compiled code
    inductor     AOTAutograd and Inductor
    cpp          the C++ toolchain as Inductor uses it
    cuda         CUDA devices in processes that see none
    triton       Triton kernels

Check this folder for each new torch release. Besides itself it imports only `fxpool.forks`, whose locks survive a fork,
and `fxpool.notices`.
Line numbers and behaviour were read in torch 2.11 and 2.13. A name that exists only in some releases is looked up with
``getattr`` where it is used, with a comment.
Inductor, AOTAutograd and Triton take seconds to import, and a hit does not need them: they are imported
inside functions, as are names that only some releases have.
``torch._dynamo`` and ``torch._inductor`` import each other. Of two threads that begin with different ones, each waits
for the other, one fails, and both packages stay broken in that process. So Dynamo is always imported first, as by
torch.compile.
"""
