"""Bytes and numbers, whatever system they are of: layout tables, varints, checksums, codecs,
fingerprints.
"""

from lastwrite.encoding.kernel_cache import drop_stale_kernels

drop_stale_kernels()  # before any module can load a kernel
