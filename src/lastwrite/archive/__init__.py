"""What an archive is, whatever system its logs are of: manifests, rounds on them, and waste."""
