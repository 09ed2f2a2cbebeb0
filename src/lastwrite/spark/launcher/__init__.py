"""Spark on this machine, started fast: the JVM, its class archive, the fork server of its workers."""
