"""``fxpool bench``: compiles the cases of a suite side by side and measures them one after the other.

suite ──▶ runs (case, mode, backend) ──▶ a process each, several at once ──▶ ready
                                             │ crashed, hung, too much memory: its own failure
results.jsonl ◀── times, differences, memory ◀── one at a time, all others stopped ◀──┘

case         what a suite is made of: cases, and the runs that they are
suite        reads suites: Python files, TOML files, those that ship
suites       those that ship
plan         how many processes at once, in what order. Pure.
child        the process of one run
runner       starts, stops and watches the processes, lets one at a time measure
results      records as JSON lines; what is there already
statistics   speed-ups and changes with their intervals. Pure.
report       tables for people
page         the report as one HTML page (page.html)
plots        the report as pictures
pyperf_file  results in the format of pyperf
display      what is going on: a live table, or lines
pytest_plugin  tests that measure run alone
bystanders   processes other than workers that pause during measurements
guard        kills what a killed process has left
measurement  times code while nothing else runs: ``fxpool.measure``
demo         ``fxpool demo``: fxpool beside stock Inductor
"""
