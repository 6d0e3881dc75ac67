"""The zygote, and the workers that it forks.

zygote    the process from which every worker is forked
worker    runs jobs in a forked process; `current_job()`
"""
