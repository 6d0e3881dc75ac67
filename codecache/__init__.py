"""Has this been compiled before, and may it be served here? Knows torch; knows no process.

graph_codec        a graph as plain data: hashed into its key, and sent to a worker
graph_decoder      and the graph made from it there
key                named components, each hashed, and the hash of those
sources            digests of the Python code a graph depends on
references           what a function refers to, and whose that is
system             facts about this installation and machine
toolchain          facts about the C++ compiler
answers              what was found out about a compiler or a distribution, until its file changes
cacheable          which graphs may be kept, and the name each refusal is counted under
guards             conditions on sizes, as data: saved, shown, evaluated, replayed
guard_arithmetic     what their nodes mean on plain numbers
entry              the record of one compiled graph, and its bytes
store              a directory of entries and the blobs they need
blobs              files that nobody else could have written
"""
