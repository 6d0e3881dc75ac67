"""AOTAutograd and Inductor.

aot              takes a Dynamo graph through both, and makes a callable of the result
aot_graph        takes one graph after AOTAutograd through Inductor; Inductor as its users call it
cache_artifacts  fxpool's entries among those of torch.compiler.save_cache_artifacts(); calls that clear torch's caches
direct_calls     programs that call ``standalone_compile`` or ``compile_fx`` themselves
debug_files      Inductor's debug files (``TORCH_COMPILE_DEBUG=1``)
graph_forms      graphs in other forms than Dynamo's
packages         exported programs, and AOTInductor
retained_graphs  backward code that may run again, after ``backward(retain_graph=True)``
output_code      Inductor's output, and the loading of linked graphs; constants that the caller has
import_paths     paths to a wrapper's objects that need no compiler
preload          imports ahead of time
hooks            takes over the work of Inductor's own processes
"""
