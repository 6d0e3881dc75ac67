"""AOTAutograd and Inductor.

aot            a Dynamo graph through both, and back into a callable
inner          one graph after AOTAutograd through Inductor, and back
cache_artifacts  fxpool's entries among those of torch.compiler.save_cache_artifacts()
clearing       hears of torch's caches on disk being cleared
debug_files    files for a person who debugs it
forms          graphs of other forms than Dynamo's
packages       exported programs, and AOTInductor
given          constants that the caller of a compile has
output_code    Inductor's output, and the loading of linked graphs
importable     paths to a wrapper's objects that need no compiler
preload        imports before they are needed
stock          Inductor as its users call it
hooks          takes over Inductor's own processes
"""
