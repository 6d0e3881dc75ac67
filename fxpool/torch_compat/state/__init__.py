"""State and configuration that shape compiled code.

configs             configuration of everything that compiles, as data, and the code it names
choices             Inductor's choices (tiling, fusion, tuning) that a program registers or sets
config_decisions    configuration entries that are not in a key, and why
switches            global state (autocast, SDPA backends, ...), captured and re-entered
switch_table        each switch with its reader and its writer
thread_state        state that only the compiling thread has (modes, levels, hooks), which is refused
"""
