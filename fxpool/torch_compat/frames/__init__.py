"""Dynamo's frames: what it makes of a function's byte code, written down and handed back to it.

frame_conversion    the step from a frame to byte code with guards, with a function around it
recording           collects what Dynamo makes of a frame
unguarded_reads     hears what Dynamo reads without a guard
unguarded_builtins  hears which of Python's functions Dynamo calls on a program's objects
set_orders          hears where code reads the elements of a set in their order
variables           Dynamo's variables, which stand for a program's objects
unguarded_objects   hears which objects Dynamo reads without a guard
misleading_sources  hears where Dynamo's guards are on another object than the one it read
untraced_calls      hears which code of the program Dynamo runs while it traces
guards              a frame's guards as plain data, and built again on other objects
guard_tree          most guards as the calls that make them, and these calls repeated
guard_calls         hears those calls while Dynamo makes the guards
plain_sources       Dynamo's sources as plain data
unguarded_facts     facts of objects, answers of torch and configuration that Dynamo makes no guard on
"""
