"""What an earlier round read of a segment, kept beside the log (``--keep-scans``)."""
