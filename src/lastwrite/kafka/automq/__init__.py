"""Reads the topics of an AutoMQ cluster from its bucket and its controllers' metadata log."""
