"""Sweeps: many small programs under stock Inductor and under fxpool; what differs is a defect.

    programs     one program for each thing that users do with torch.compile
    operators    torch's own operator database: outputs, mutated arguments, gradients
    families     families of transformers from tiny configurations, inference and training

    running      has the items of a sweep run in child processes, and survives those that crash or hang
      child      one process: some items of one sweep under one back end, a line of JSON for each
        closeness  is this what eager execution gives?
    record       the result of one item in one process
    verdict      the differences between the back ends, and which of them are losses

`make conformance`, or `PYTHONPATH=tests python -m campaigns.conformance`, runs it.
"""
