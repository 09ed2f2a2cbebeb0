"""The scan cache (``--keep-scans``): what scans found of a segment, in a file beside it."""

# Its package drops kernels that are out of date, before any is loaded here.
from lastwrite.encoding.kernel_cache import drop_stale_kernels as drop_stale_kernels
