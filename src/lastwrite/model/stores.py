"""How stores are reached, as a value that travels to workers. Nothing in it is secret."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StoreSettings:
    """Where a bucket answers and how long it may take. Who we are, each process finds itself."""

    endpoint: str = ""  # empty: the provider's own, or what the environment says
    region: str = ""  # empty: what the environment says
    is_path_style: bool = True  # HOST/BUCKET/KEY, not BUCKET.HOST/KEY
    allows_http: bool = False
    timeout_ms: int = 30_000  # of one request, its body included
    retries: int = 4  # of one request, where another try may help
    is_dry: bool = False  # what would be written is only counted
    keep_replaced_ms: int = 3_600_000  # of the driver, as the next
    secret_file: str = ""  # of the driver alone: see ``scan_cache.secret``
    encryption_keys: tuple[tuple[str, str], ...] = ()  # ids, files: see ``storage.encryption``
