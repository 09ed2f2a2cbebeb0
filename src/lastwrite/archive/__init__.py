"""Archives, independent of the system: manifests, rounds on partitions, and waste."""
