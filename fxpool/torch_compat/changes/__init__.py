"""Finds what a program changed in torch's modules, by what their source says.

changed_namespaces  code in torch's modules and classes that is not torch's, or is from another place
substituted_values  tells whether a function of torch is in its own place
changed_constants   constants, containers and defaults of functions that are not as in the source
added_kernels       Python kernels that a program added to operators of torch
torch_sources       facts about the sources, stored per host
name_bindings       reads what names are bound to from compiled code
assigned_literals   reads literals and displays of containers from compiled code
stack_machine       follows the stack of compiled code
container_displays  compares containers with their displays
"""
