"""The decisions of a round, as pure functions: no bytes, no files, no clock."""

# Importing this module drops stale kernels before any is loaded here.
from lastwrite.encoding.kernel_cache import drop_stale_kernels as drop_stale_kernels
