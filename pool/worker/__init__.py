"""The zygote, and the workers that it forks.

zygote    the process that forks
worker    runs a job; current_job()
"""
