"""Operators by name, and a program's registrations for them.

operators            operators and functions of a graph by name, and their arguments that name a device
memory_placement     functions that can see a tensor's place in memory
node_effects         the tensors that a node writes to, and the thread state that it sets
registrations        a program's registrations for its own operators and for torch's
dispatch_probe       the Python code behind a kernel of the dispatcher
libraries            the shared library that registered an operator
operator_tables      Inductor's tables by operator, and torch's own entries in them
inductor_tables      a program's lowerings, decompositions, patterns and device passes
code_owner           whose code a function, class or module is
pickled_definitions  operators and registrations as bytes, for processes whose imports do not make them
operator_overrides   ends a compile that meets an operator with the program's own lowering
"""
