"""The compile cache: computes the key of a graph and finds the entries stored under it.

Imports torch; starts no workers.

graph     graphs as plain data: encoding and decoding
key       the key: a hash of everything that a compiled graph depends on
code      digests of the program's code
guards    conditions on sizes
store     the cache directory: entries, blobs, limits
remote    a cache shared between machines, behind the local one
bundle    entries in one file
explain   reasons for a miss

A lookup uses them in this order: `graph` encodes the graph, `code` digests the program's code that the graph uses,
`key` hashes both with facts about this machine, `store` finds the entries under that key, and `guards` select the
entry that fits.
"""
