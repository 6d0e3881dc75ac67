"""Finds what a program changed in torch's modules, by what their source says.

namespaces       code in torch's modules and classes that is not torch's, or is from another place
substitutes      tells whether a function of torch is in its own place
constants        constants, containers and defaults of functions that are not as in the source
added_kernels    Python kernels that a program added to operators of torch
torch_sources    facts about the sources, stored per host
bindings         reads what names are bound to from compiled code
literals         reads literals and displays of containers from compiled code
stack            follows the stack of compiled code
displays         compares containers with their displays
"""
