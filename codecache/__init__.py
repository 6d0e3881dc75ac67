"""Has this graph been compiled before, and may the result be served here? Knows torch; starts no process.

graph     graphs as plain data: encoded, decoded
key       what a compiled graph depends on, hashed
code      digests of the program's code
guards    conditions on sizes
store     the cache directory: entries, blobs, limits
remote    a cache that machines share, behind the local one
bundle    entries in one file
explain   why a graph was a miss

A lookup goes through them in this order: `graph` encodes the graph, `code` digests the program's code in it, `key`
hashes both with the facts of this machine, `store` finds the entries of that key, `guards` choose among them.
"""
