"""Starts Spark quickly on this machine: the JVM, its class archive, the workers' fork server."""
