"""What compaction promises, as invariants over two logs; by another method than the engine."""

# Its package drops kernels that are out of date, before any is loaded here.
from lastwrite.encoding.kernel_cache import drop_stale_kernels as drop_stale_kernels
