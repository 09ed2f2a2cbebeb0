"""Verify the invariants of compaction over two logs, by another method than the engine's."""

# This import removes outdated compiled kernels before any kernel is loaded.
from lastwrite.encoding.kernel_cache import drop_stale_kernels as drop_stale_kernels
