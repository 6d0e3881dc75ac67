"""Dynamo, symbolic shapes and fake tensors.

tracing            Dynamo's tracing context: fake inputs, sources, guards, compile ids
frames             which function is traced, and what of its inputs a person would know it by
shape_env          symbolic shapes as data: symbols, ranges, guards, there and back
tensors            a (fake) tensor's description, and the tensor made from it
sympy_functions    sympy functions of torch's by name
backend_table      the names of backends, where several threads come for ours
"""
