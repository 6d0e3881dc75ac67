"""Dynamo, symbolic shapes and fake tensors.

tracing           Dynamo's tracing context: fake inputs, sources, guards, compile ids
frames            the function that is traced, and a summary of its inputs for people
shape_env         symbolic shapes as plain data: symbols, ranges, guards, in both directions
tensors           a (fake) tensor's description, and the tensor made from it; packed weights, opaque inputs
sympy_functions   torch's own sympy functions by name
process_groups    process groups that a graph names; longer timeouts of collectives after a hit
torch_counters    torch's own counters of its caches
traced_functions  numbers of functions that Dynamo traced, and its reasons to stop
compile_times     torch's record of a compile in a worker, merged into the client's
log_state         artifacts of torch's logs, and structured traces, of a compile in a worker
standalone        compiled graphs that outlive their process: without Dynamo, or in Dynamo's files
frozen_objects    keeps the program's objects out of full garbage collections while Dynamo compiles
backend_table     enters our backend before torch imports its own, and for several threads at once
late_minifier     imports torch's minifier when a graph is compiled, instead of with `torch.compile`
"""
