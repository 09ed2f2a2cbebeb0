"""The scan cache (``--keep-scans``): stores the scan of a segment in a file beside the segment."""

# This import deletes outdated compiled kernels before any kernel is loaded.
from lastwrite.encoding.kernel_cache import drop_stale_kernels as drop_stale_kernels
