"""Settings for object stores, as a value that is sent to workers. It contains no secret."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StoreSettings:
    """The address of an object store, and the limits of a request.

    Credentials are not included: each process reads them from its environment.
    """

    endpoint: str = ""  # empty for the endpoint from the environment, or the provider's default
    region: str = ""  # empty for the region from the environment
    is_path_style: bool = True  # whether URLs are HOST/BUCKET/KEY rather than BUCKET.HOST/KEY
    allows_http: bool = False
    timeout_ms: int = 30_000  # timeout of one request, including its body
    retries: int = 4  # retries of one request, after a temporary error
    is_dry: bool = False  # whether writes are only counted, not sent
    keep_replaced_ms: int = 3_600_000  # time to keep replaced objects; used by the driver only
    secret_file: str = ""  # file with a secret, see ``scan_cache.secret``; used by the driver only
    # pairs of id and file: see ``storage.encryption``
    encryption_keys: tuple[tuple[str, str], ...] = ()
