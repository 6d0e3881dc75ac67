"""CUDA devices in processes that see none.

device_facts      what compiling for a device depends on, as plain data
common_devices    facts of GPUs that are common
device_answers    torch and Triton get their answers from facts
device_guard      the same for torch's C++
no_devices        keeps devices out of reach for a while
attention         which implementation of attention a graph's calls use
padding           whether a matrix product is padded, which takes a clock
"""
