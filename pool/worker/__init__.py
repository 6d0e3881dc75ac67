"""The zygote, and the workers that it forks.

zygote       the process from which workers are forked
branches     its branches, from which the workers of jobs with the same preparation are forked
branching    makes a branch of a worker
worker       runs jobs in a forked process; `current_job()`
preparing    runs a job's preparation, and decides whether it can be a branch's
"""
