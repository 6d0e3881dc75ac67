"""Everything that travels between the processes: messages, frames and their contents, and the server's configuration.

messages     one Struct per message, one union per direction
job_spec     JobSpec: a job's environment, limits and priority
farm         the messages between a server and its bridge to a farm
protocol     the frame format, and the identity of the peer
connection   a socket that carries frames, for asyncio
exceptions   carries an exception with its frames from a worker to the caller
logs         carries log records and warnings from a worker to the caller
config       PoolConfig, and the part of it that the server reads
"""
