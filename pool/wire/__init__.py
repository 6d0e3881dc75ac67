"""Messages and frames between the processes, and the configuration that a server is started with.

messages     one Struct per message, one union per direction
protocol     frames, and the identity of the peer
connection   frames in asyncio
exceptions   an exception and its frames, from a worker to its caller
logs         log records and warnings, likewise
config       PoolConfig: the settings a pool is started with
"""
