"""Operators by name, and what a program registered for them.

operators                 operators and functions of a graph by name
registrations             what a program registered for an operator, and for torch's own
dispatch_probe            the Python code behind a kernel of the dispatcher's
libraries                 the shared library that registered an operator
custom_operators          operators behind the objects that `custom_op` and `triton_op` return
inductor_registrations    lowerings, decompositions, patterns and device passes that are a program's
replaced                  torch's functions that a program put others in the place of
otherwise                 operators that a program has compiled otherwise: told when one is met
"""
