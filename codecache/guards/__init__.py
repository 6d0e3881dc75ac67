"""Guards: conditions on sizes, as data that is stored, shown, evaluated and replayed.

guards            encodes, decodes, renders and evaluates guards
guard_arithmetic  evaluates their expressions on plain numbers
"""
