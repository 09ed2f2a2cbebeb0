"""The scan cache (``--keep-scans``): the results of scanning a segment, in a file beside it."""

# Importing this module drops stale kernels before any is loaded here.
from lastwrite.encoding.kernel_cache import drop_stale_kernels as drop_stale_kernels
