"""A cache in front of Dynamo: what it made of a frame is kept, and handed back to it where tracing would give the same.

It is a room next to `fxpool.lowering`, and begins where Dynamo has ended: a frame refers to graphs by the entries that
lowering stored, and no other room knows of frames. Only the setting `frames` leads here.

identity        descriptions of the objects that tracing met
class_facts     facts of classes for these
object_texts    texts of what guards leave out of an object
shared_parts    parts of functions and classes that others may share
unheard_code    code of programs that may run without a call that can be heard
code_digests    digests of byte code, and the names in it
code_locations  where the code of a traced function is found
byte_code       byte code as plain data
process_facts   facts of a process besides its objects, read and asked for again
record          one frame as it is kept, and how it fits another process's objects
record_making   makes a record of what Dynamo traced, and proves it
fact_text       the facts of a record as text
serving         looks frames up where Dynamo would trace, and keeps what it traced
"""
