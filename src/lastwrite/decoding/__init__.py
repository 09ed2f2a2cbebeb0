"""Decode keys and values to typed Arrow columns: UTF-8, JSON, Avro, Protobuf, Confluent's frame.

A schema is converted to a tree of *shapes*, and the tree to a list of *slots*, which are columns in
one arena. A kernel fills the slots from the bytes of many values, without a Python statement per
value.
"""
