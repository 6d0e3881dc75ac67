"""The server: accepts clients, schedules jobs, owns the zygote. One asyncio process, which never imports torch.

server             serves clients, starts the zygote, shuts down
clients            accepts and greets clients, and notices when they leave
dispatcher         runs jobs in workers, as the scheduler decides
workers            starts workers, and handles their ends
stale_server       kills a hung server after another has replaced it
scheduler          decides which job runs next: a state machine without I/O
scheduler_state    the scheduler's records of jobs and workers
decisions          actions for the server to carry out, and outcomes for callers
results            the server's records of jobs and workers, and the message that reports a job's end
job_limits         time and memory limits of running jobs, the host's memory, suspended workers
farms              sends jobs to farms, and decides which of them run at home
measurement_pause  suspends jobs and zygote while clients measure
caller_messages    log records, progress and callbacks for the callers of jobs
report             rows about jobs and memory for `fxpool status`
history            a history of jobs for the dashboard
zygote_link        starts the zygote and exchanges messages with it
"""
