"""Invariants of compaction over two logs, checked by another method than the engine's."""

# The package's initialisation removes outdated kernels before any is loaded here.
from lastwrite.encoding.kernel_cache import drop_stale_kernels as drop_stale_kernels
