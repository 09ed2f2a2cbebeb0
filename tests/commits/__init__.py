"""Tests of committed offsets of groups in a server that is killed."""
