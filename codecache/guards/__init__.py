"""Guards: conditions on sizes, as data that is stored, shown, evaluated and replayed.

guards            records, evaluates and replays guards
guard_arithmetic  evaluates their expressions on plain numbers
"""
