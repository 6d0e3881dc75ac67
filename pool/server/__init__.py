"""The server: accepts clients, schedules jobs, owns the zygote. One asyncio process, which never imports torch.

server            serves clients, starts the zygote, shuts down
clients           accepts and greets clients, and notices when they leave
dispatcher        runs jobs in workers, as the scheduler decides
scheduler         decides which job runs next: a state machine without I/O
scheduler_state   the scheduler's records of jobs and workers
decisions         actions for the server to carry out, and outcomes for callers
outcomes          the server's records of jobs and workers, and the message that reports a job's end
bounds            time and memory limits of running jobs
farms             sends jobs to farms, and decides which of them run at home
watch             compares the memory of jobs and host with the limits
stops             notices suspended workers
pauses            suspends jobs and zygote while clients measure
records           forwards log records to clients
job_events        reports the progress of jobs to the clients that watch them
questions         callbacks: passes questions of workers to the callers of their jobs
report            rows about jobs and memory for `fxpool status`
descriptors       the limit of file descriptors, and the room that is left
history           a history of jobs for the dashboard
zygote_link       starts the zygote and exchanges messages with it
"""
