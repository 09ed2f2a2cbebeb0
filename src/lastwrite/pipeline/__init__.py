"""Stages, Spark and the functions of the package: the only folder that imports pyspark."""

from lastwrite.pipeline.kernel_cache import drop_stale_kernels

drop_stale_kernels()  # before any module of this folder can load a kernel
