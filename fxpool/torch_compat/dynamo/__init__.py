"""Dynamo, symbolic shapes and fake tensors.

tracing            Dynamo's tracing context: fake inputs, sources, guards, compile ids
frames             the function that is traced, and a summary of its inputs for people
shape_env          symbolic shapes as data: symbols, ranges, guards, there and back
tensors            a (fake) tensor's description, and the tensor made from it
sympy_functions    torch's own sympy functions by name
process_groups     process groups that a graph names
collective_timeouts    longer timeouts of collectives after a hit
opaque_inputs      inputs after AOTAutograd that are no values
torch_counters     torch's own counters of its caches
compile_times      torch's record of a compile in a worker, told to the process that asked
precompile         what Dynamo asks of a compiled graph that it writes into a file
standalone         graphs that are compiled without Dynamo
backend_table      lets several threads register our backend at once
"""
