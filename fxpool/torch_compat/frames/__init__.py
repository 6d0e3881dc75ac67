"""Dynamo's frames: what it makes of a function's byte code, written down and handed back to it.

converting    the step from a frame to byte code with guards, with a function around it
recording     collects what Dynamo makes of a frame, and what it reads without a guard
guards        a frame's guards as plain data, and built again on other objects
tree          most guards as the calls that make them, and these calls repeated
listening     hears those calls while Dynamo makes the guards
plain         Dynamo's sources as plain data
unguarded     facts of objects, answers of torch and configuration that Dynamo makes no guard on
"""
