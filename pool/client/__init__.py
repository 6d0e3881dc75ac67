"""The caller's process: finds or starts a server, and submits jobs to it.

client      PoolClient: submit, status, close
job         Job: result, cancel, callbacks
session     a connection to a server, from finding or starting it until either end closes it
launch      starts a private server, or finds or starts the host's server
identity    the digest of an environment; clients with the same digest share a server
pausing     suspends this host's servers while this process measures
hosts       lists, queries and ends this host's servers without submitting jobs
"""
