"""Object stores for archives: folders and buckets."""
