"""Byte encodings that all systems share: layouts, varints, checksums, codecs, fingerprints."""

from lastwrite.encoding.kernel_cache import drop_stale_kernels

drop_stale_kernels()  # outdated kernels must be deleted before any module loads a kernel
