"""AOTAutograd and Inductor.

aot            takes a Dynamo graph through both, and makes a callable of the result
inner          takes one graph after AOTAutograd through Inductor
cache_artifacts  fxpool's entries among those of torch.compiler.save_cache_artifacts()
clearing       reports when a program clears torch's caches on disk
debug_files    Inductor's debug files (``TORCH_COMPILE_DEBUG=1``)
forms          graphs in other forms than Dynamo's
packages       exported programs, and AOTInductor
given          constants that the caller of a compile has
output_code    Inductor's output, and the loading of linked graphs
repro_text     the script that reproduces a graph, without the process's environment
importable     paths to a wrapper's objects that need no compiler
preload        imports ahead of time
stock          Inductor as its users call it
hooks          takes over the work of Inductor's own processes
"""
