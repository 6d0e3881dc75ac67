"""Results of public functions: their types, and their looks in a terminal and a notebook.

data            types of the plain data that `fxpool.stats()` and `fxpool.wait()` return
result_display  the same data with a `repr` and HTML
markup          tables in text and HTML
"""
