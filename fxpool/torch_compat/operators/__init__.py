"""Operators by name, and a program's registrations for them.

operators                 operators and functions of a graph by name
node_effects              what a node of a graph writes to, and what state of the thread it sets
registrations             a program's registrations for an operator, and for torch's own
dispatch_probe            the Python code behind a kernel of the dispatcher's
libraries                 the shared library that registered an operator
custom_operators          operators behind the objects that `custom_op` and `triton_op` return
inductor_registrations    a program's lowerings, decompositions, patterns and device passes
replaced                  torch's functions that a program replaced
by_value                  operators and registrations as bytes, where no import makes them
otherwise                 operators that a program compiles differently: ends a compile that meets one
"""
