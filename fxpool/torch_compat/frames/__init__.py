"""Dynamo's frames: what it makes of a function's byte code, written down and handed back to it.

converting    the step from a frame to byte code with guards, with a function around it
recording     collects what Dynamo makes of a frame
unguarded     hears what Dynamo reads and makes no guard on
guards        a frame's guards as plain data, and built again on other objects
tree          most guards as the calls that make them, and these calls repeated
listening     hears those calls while Dynamo makes the guards
plain         Dynamo's sources as plain data
objects       types and attributes that descriptions of objects have to know
folded        answers of torch that Dynamo takes for constants, and its configuration
"""
