"""Keys and values as typed columns of Arrow: UTF-8, JSON, Avro, Protobuf, Confluent's frame.

A schema becomes a tree of *shapes*; the tree a row of *slots*, each a column in one arena; and a
kernel fills the slots from the bytes of many values at once, with no Python statement a value.
"""
