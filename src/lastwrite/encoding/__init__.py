"""Bytes and numbers, independent of the system: layouts, varints, checksums, codecs, fingerprints."""

from lastwrite.encoding.kernel_cache import drop_stale_kernels

drop_stale_kernels()  # before any module can load a kernel
