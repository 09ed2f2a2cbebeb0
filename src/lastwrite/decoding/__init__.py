"""Keys and values as typed Arrow columns: UTF-8, JSON, Avro, Protobuf, Confluent's frame.

A schema becomes a tree of *shapes*, and the tree a row of *slots*, each a column in one arena. A
kernel then fills the slots from the bytes of many values, without a Python statement per value.
"""
