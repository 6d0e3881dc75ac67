"""Explains misses: compares a graph with the entries in the store.

misses            why a graph was not served
nearest           the stored graph nearest to another, and how they differ
comparison        two keys: which item of which component differs
graph_comparison  two graphs: which nodes were changed, added or removed
"""
