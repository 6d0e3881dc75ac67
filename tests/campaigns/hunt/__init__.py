"""A hunt for wrong results: programs that are changed in one thing, and what fxpool makes of them afterwards.

    program    a case: the processes of a program, one thing different between them
    readings   how a program comes by a number: a constant, a default argument, the environment, a file, ...
    pieces     the use that a program makes of it: operators, rules, passes, patterns, modules, ...
    kinds_*    the kinds of change; each draws cases
    changes    kinds that are rows of a table: a program in which one text differs
    libraries  the C++ libraries of such programs
    phases     one process of a case: imports the program, calls it, and says what came out
    runner     has the processes of a case run and judges them
    report     the table, and the file of a run

`make hunt`, or `PYTHONPATH=tests python -m campaigns.hunt`, runs it.
"""
