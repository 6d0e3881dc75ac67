"""CUDA devices in processes that see none.

device_facts      facts that compiling for a device depends on, as plain data; the math library to link
common_devices    facts of common GPUs
device_answers    answers torch and Triton from facts
device_guard      the same for torch's C++
no_devices        keeps devices out of reach temporarily
attention         the attention implementations of a graph's calls
padding           decisions to pad matrix products, which are measured
"""
