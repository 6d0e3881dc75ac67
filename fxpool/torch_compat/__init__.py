"""The wall around torch's private names: everything fxpool knows of torch's internals is in this folder.

    versions      which torch is supported, and the refusal when it isn't
    tracing       Dynamo's tracing context: fake inputs, sources, guards, compile ids
    frames        which function is traced, and what of its inputs a person would know it by
    shape_env     symbolic shapes as data: symbols, ranges, guards, there and back
    tensors       a (fake) tensor's description, and the tensor made from it
    operators     operators and functions by name
    registrations      what a program registered for an operator, and for torch's own
    dispatch_probe     the Python code behind a kernel of the dispatcher's
    libraries          the shared library that an operator's C++ source was compiled into
    inductor_registrations   lowerings, decompositions, patterns and device passes that are a program's
    replaced           torch's functions that a program put others in the place of
    otherwise          operators of which a program has its own compiled otherwise: told when one is met
    custom_operators   operators that `custom_op` and `triton_op` made, behind the objects these return
    sympy_functions    sympy functions of torch's by name
    switches      global state that shapes code (autocast, SDPA backends, ...): captured and re-entered
    switch_table  all of it, each switch with its reader and its writer
    thread_state  what only the thread has that compiles (modes, levels, hooks), which is refused
    configs       configuration of all that compiles, as data, and the code it names
    config_decisions   which of its entries are not in a key, and why
    aot           a Dynamo graph through AOTAutograd and Inductor, and back into a callable
    inner         one graph after AOTAutograd through Inductor, and back into a callable
    output_code   what Inductor returns, and how a linked graph comes to life
    importable    where the objects that a wrapper names can be had without a compiler
    cpp           the C++ tool chain as Inductor drives it: flags, commands, collected kernels
    cpp_toolchain      which compilers Inductor would try
    instruction_sets   which vector instructions it may use
    preload       what is imported before it is needed
    backend_table      the names of backends, where several threads come for ours
    borrowing     where Inductor hands work to processes of its own

A new torch release is this folder to read. It imports nothing of fxpool's but itself and
`fxpool.forks`, whose locks survive a fork.
Line numbers and behaviour were read in torch 2.11 and 2.13; a name that exists in only
one of them is looked up with ``getattr`` where it is used, with a comment.
"""
