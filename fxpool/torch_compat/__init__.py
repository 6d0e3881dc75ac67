"""The wall around torch's private names: everything fxpool knows of torch's internals is in this folder.

    patching     one attribute of torch's or Triton's replaced for a while
    versions     which torch is supported, and the refusal when it isn't
    dynamo       Dynamo, symbolic shapes and fake tensors
    operators    operators by name, and what a program registered for them
    state        configuration and switches that shape compiled code
    inductor     AOTAutograd and Inductor
    cpp          the C++ toolchain as Inductor drives it
    cuda         CUDA devices in processes that see none
    triton       Triton kernels

A new torch release is this folder to read. It imports nothing of fxpool's but itself and
`fxpool.forks`, whose locks survive a fork.
Line numbers and behaviour were read in torch 2.11 and 2.13; a name that exists in only
one of them is looked up with ``getattr`` where it is used, with a comment.
"""
