"""``fxpool bench``: compiles the cases of a suite side by side and measures them one after the other.

suite ──▶ runs (case, mode, backend) ──▶ a process each, several at once ──▶ ready
                                             │ crash, hang, too much memory: a failure of this run only
results.jsonl ◀── times, differences, memory ◀── one at a time, all others stopped ◀──┘

case         the cases of a suite, and the runs of a case
suite        reads suites: Python files, TOML files, the suites that ship with fxpool
suites       the suites that ship with fxpool
plan         decides the number of concurrent processes and their order. Pure.
child        the process of one run
runner       starts, suspends and watches the processes; one at a time measures
results      the file of results, as JSON lines; resumes earlier results; the file for pyperf
report       tables for the terminal
page         the report as one HTML page (page.html)
plots        the report as images
display      progress: a live table, or lines
pytest_plugin  runs tests that measure exclusively
servers      the servers that runs share: their processor time, whether they are idle, and their end
environment  environments of processes, with their own caches
witness      counts the graphs that a process lowers, beside fxpool's own counters
bystanders   suspends processes other than workers during measurements
guard        kills the processes that a killed process leaves
measurement  times code while nothing else runs: ``fxpool.measure``
demo         ``fxpool demo``: compares fxpool with stock Inductor
"""
