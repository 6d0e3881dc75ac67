"""Times code while nothing else of fxpool's runs on the host, and says how far the times can be believed.

measure ──▶ warm-up ──▶ `measuring` ──▶ samples, until the interval is narrow or the time is over ──▶ Measurement
                          │ a turn of this host's, per device; servers stand still
                          └ before and after: what else the machine did

exclusive      measuring(): the host's turn for a device, and everything else at a standstill
timing         measure(): from a function to its times
shorthand      do_bench(), timed(), print_performance(): `measure` under the names of torch's functions
samples        the arithmetic of samples: median, its interval, drift, when to stop. Pure.
clocks         times calls, on the CPU or by a GPU's own clock
inputs         copies of inputs, so that no call finds its own in a cache
surroundings   what else the machine does: load, clock, temperature, other processes on a GPU
result         what measure() returns
"""
