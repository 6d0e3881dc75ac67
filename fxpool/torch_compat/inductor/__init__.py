"""AOTAutograd and Inductor.

aot            a Dynamo graph through both, and back into a callable
inner          one graph after AOTAutograd through Inductor, and back
output_code    what Inductor returns, and how a linked graph comes to life
importable     where the objects that a wrapper names can be had without a compiler
preload        what is imported before it is needed
hooks          where Inductor hands work to processes of its own
"""
