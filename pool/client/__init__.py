"""The caller's process: submits jobs to a server, which it finds or starts.

client      PoolClient: submit, status, close
job_spec    JobSpec: where a job runs, its limits, its priority
job         Job: result, cancel, callbacks
session     a connection to a server, from finding or starting it until either ends
launch      starts a private server, or finds or starts the host's
identity    names the environment that a host's server belongs to
pausing     pauses servers while this process measures
hosts       lists, queries and stops this host's servers from outside
ending      ends a server, even an unresponsive one
"""
