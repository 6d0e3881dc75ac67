"""Faults of all kinds against running pools: ``make chaos``.

__main__    the command line, and the table of figures
scene       a campaign's directories and processes, and the leftovers
kills       processes of all kinds are killed and suspended while programs compile
frames      random and malformed frames against a server
clients     many clients of one server and one store, for minutes
limits      compiles while the host is short of something
child       the programs that compile and the clients
"""
