"""The server: accepts clients, schedules jobs, owns the zygote. One asyncio process without torch.

server            clients, the zygote, shutdown
dispatcher        jobs and workers: carries out the scheduler's decisions
scheduler         decisions: a state machine without I/O
scheduler_state   its records of jobs and workers
decisions         actions for the server to carry out, outcomes for callers
outcomes          records of jobs and workers, and the message that reports a job's end
bounds            the limits of running jobs
watch             compares those limits with the memory that jobs use
pauses            clients that measure, and what is paused for them
records           log records on their way to clients
job_events        progress of jobs, for clients that subscribed
questions         questions of workers to the callers of their jobs
report            job records for `fxpool status`
history           records of jobs for the dashboard
zygote_link       the server's end of the zygote
"""
