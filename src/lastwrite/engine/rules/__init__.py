"""The decisions of a round, as pure functions: no bytes, no files, no clock."""

# This import deletes outdated compiled kernels before any kernel is loaded.
from lastwrite.encoding.kernel_cache import drop_stale_kernels as drop_stale_kernels
