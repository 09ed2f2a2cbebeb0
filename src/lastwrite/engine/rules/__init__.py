"""What a round decides, pure: no bytes, no files, no clock."""

# Its package drops kernels that are out of date, before any is loaded here.
from lastwrite.encoding.kernel_cache import drop_stale_kernels as drop_stale_kernels
