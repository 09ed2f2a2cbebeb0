"""Starts Spark quickly on this machine: the JVM, its class archive, and the workers' fork server."""
