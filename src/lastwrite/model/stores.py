"""How to reach stores, as a value that is sent to workers. It contains no secret."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StoreSettings:
    """How to reach a bucket, and the limits of a request.

    Credentials are not included: each process finds its own.
    """

    endpoint: str = ""  # empty: the provider's own, or the one in the environment
    region: str = ""  # empty: the one in the environment
    is_path_style: bool = True  # HOST/BUCKET/KEY, not BUCKET.HOST/KEY
    allows_http: bool = False
    timeout_ms: int = 30_000  # of one request, including its body
    retries: int = 4  # of one request, if a retry may help
    is_dry: bool = False  # writes are only counted
    keep_replaced_ms: int = 3_600_000  # used by the driver only, as is the next field
    secret_file: str = ""  # see ``scan_cache.secret``
    # pairs of id and file: see ``storage.encryption``
    encryption_keys: tuple[tuple[str, str], ...] = ()
