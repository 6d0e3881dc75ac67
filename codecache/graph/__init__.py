"""Graphs as plain data: encoded for the key and for a worker, and rebuilt in the worker.

graph_codec      encodes a graph, to be hashed into its key and sent to a worker
value_encoder    encodes the arguments of its nodes, and its inputs
graph_names      numbers and names of nodes and attributes
placed_inputs    leaves out the place of inputs in memory where a graph cannot see it
graph_decoder    rebuilds the graph in the worker
target_names     finds names for functions and operators that are valid in another process
encoded_values   renders encoded arguments, functions and tensors as text
"""
