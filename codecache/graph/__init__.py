"""A graph as plain data: encoded for its key and for a worker, and rebuilt there.

graph_codec      encodes a graph, which is hashed into its key and sent to a worker
graph_decoder    rebuilds the graph in the worker
target_names     names of functions and operators in another process
encoded_values   shows encoded arguments, functions and tensors
"""
