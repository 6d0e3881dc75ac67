"""State and configuration that affect compiled code.

configs           configuration of everything that compiles, as data, and the code it names
inductor_choices  Inductor's choices (tiling, fusion, tuning) that a program registers or sets
config_decisions  configuration entries that are left out of keys, with reasons
compile_flags     flags that torch holds while it compiles
global_state      global state (autocast, SDPA backends, ...), each with its reader and its writer
thread_state      state of the compiling thread (modes, levels, hooks) that is refused
"""
