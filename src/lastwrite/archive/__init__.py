"""Archives of any system: manifests, write transactions on partitions, and sweeps."""
