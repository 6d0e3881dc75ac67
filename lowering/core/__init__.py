"""What every part of the way of a graph uses.

    options         what the caller of ``torch.compile`` asked for, and the mode
    attempt         one graph on its way, and what has happened to it so far
    runtime         the process's pool and stores, made when first needed
    job_progress    a job of the pool as those see it who watch
    scratch         directories for what Inductor and Triton write

Imports `cpp`.
"""
