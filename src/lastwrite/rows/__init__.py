"""Records as rows: the schema that all systems share, and columns of Arrow."""
