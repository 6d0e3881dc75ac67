"""Times code while fxpool runs nothing else on the host, and says how reliable the times are.

measure ──▶ warm-up ──▶ `measuring` ──▶ samples, until the interval is narrow or the time is over ──▶ Measurement
                          │ the measurement lock of the device; servers are suspended
                          └ before and after: other activity of the machine

exclusive      measuring(): holds the measurement lock of a device while servers are suspended
timing         measure(): times a function, with copies of its inputs
shorthand      do_bench(), timed(), print_performance(): `measure` under the names of torch's functions
statistics     medians, drift, speed-ups and pairs, with their intervals. Pure.
clocks         times calls by the clock of a CPU or GPU, or by torch's profiler
surroundings   other activity of the machine: load, clock, temperature, other processes on a GPU
result         Measurement: the result of measure()
"""
