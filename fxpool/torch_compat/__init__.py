"""The wall around torch's private names: all that fxpool uses of torch's internals is in this folder.

    imported     calls when a module of torch's is there
    patching     one attribute of torch's or Triton's replaced for a while
    versions     supported releases of torch, and the refusal of others
    nested       values in nested containers
    dynamo       Dynamo, symbolic shapes and fake tensors
    operators    operators by name, and a program's registrations for them
    state        configuration and switches that shape compiled code
    inductor     AOTAutograd and Inductor
    cpp          the C++ toolchain as Inductor uses it
    cuda         CUDA devices in processes that see none
    triton       Triton kernels

For a new torch release, this folder has to be checked. It imports nothing of fxpool's but itself and
`fxpool.forks`, whose locks survive a fork.
Line numbers and behaviour were read in torch 2.11 and 2.13; a name that exists in only
one of them is looked up with ``getattr`` where it is used, with a comment.
Inductor, AOTAutograd and Triton take seconds to import, which a hit does without: they are imported inside functions,
and so is what only some releases have.
"""
