"""A refused request, classified by the client's error. The error's text is never shown.

The text contains signed values, and URLs that may contain a signature. Error messages therefore
contain only the object's address, the provider's name of the action, the status and the provider's
error code.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from lastwrite.errors import RemoteFailed

_STATUS = re.compile(r"non-2xx status code: (\d{3})")
_CODE = re.compile(r"<Code>(\w{1,60})</Code>")
_TRY_AGAIN = {408, 425, 429}
# Error codes for a missing object. The response to HEAD has no code. Other codes with status 404 do
# not count: versitygw sends them for unknown credentials.
_ABSENT_OBJECT = {"", "NoSuchKey", "BlobNotFound"}
_ABSENT_BUCKET = {"NoSuchBucket", "ContainerNotFound", "InvalidBucketName"}
_FOLDER_CODES = {"ExistingObjectIsDirectory", "ObjectParentIsFile"}
_REGION_CODES = {"AuthorizationHeaderMalformed", "PermanentRedirect", "IllegalLocationConstraint"}
_WHO_CODES = {
    "SignatureDoesNotMatch",
    "InvalidAccessKeyId",
    "ExpiredToken",
    "InvalidToken",
    "AuthenticationFailed",
    "XAdminUserNotFound",
}
# hosts from which a cloud machine gets credentials; used by the client if none are configured
_WHO_PLACES = ("169.254.169.254", "169.254.170.2", "metadata.google.internal", "login.microsoft")
_BROKEN = "the connection was closed before the end of the answer"
_CONDITIONS = {"AlreadyExistsError", "PreconditionError", "NotModifiedError"}
_ACTIONS = {
    "s3": {
        "get": "s3:GetObject",
        "put": "s3:PutObject",
        "list": "s3:ListBucket",
        "delete": "s3:DeleteObject",
    },
    "gs": {each: f"storage.objects.{each}" for each in ("get", "list", "delete")}
    | {"put": "storage.objects.create"},
    "az": {
        "get": "blobs/read",
        "put": "blobs/write",
        "list": "blobs/read",
        "delete": "blobs/delete",
    },
}
_CREDENTIALS = {
    "s3": (
        "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or a role; for a profile in ~/.aws run pip "
        "install boto3"
    ),
    "gs": "GOOGLE_APPLICATION_CREDENTIALS, or a service account of the machine",
    "az": "AZURE_STORAGE_ACCOUNT_NAME with AZURE_STORAGE_ACCOUNT_KEY, or an identity of the "
    "machine",
}


@dataclass(frozen=True, slots=True)
class Refusal:
    """A failed request: the store responded with an error, or did not respond."""

    kind: str  # name of the client's error class
    status: int | None  # HTTP status; None if no complete response arrived
    code: str  # the provider's error code
    is_builder: bool  # whether the client rejected the request without sending it
    is_nobody: bool  # whether the client found no credentials
    is_redirect: bool
    cause: str  # text that states why no response arrived

    @classmethod
    def of(cls, error: BaseException) -> Refusal:
        text = str(error)
        status, code = _STATUS.search(text), _CODE.search(text)
        first = text.partition("Debug source")[0]
        return cls(
            kind=type(error).__name__,
            status=int(status[1]) if status else None,
            code=code[1] if code else "",
            is_builder="kind: Builder" in text or "builder error" in text,
            is_nobody=any(place in first for place in _WHO_PLACES)
            or "MissingCredentials" in text
            or "AccountName" in text,
            is_redirect="Received redirect" in text,
            cause=_cause(text),
        )

    @property
    def is_condition(self) -> bool:
        """Whether a write's condition failed, or another request was changing the object."""
        if self.code in _FOLDER_CODES or (self.status == 404 and self.code not in _ABSENT_OBJECT):
            return False
        return self.kind in _CONDITIONS or self.status in (409, 412)

    @property
    def is_absent(self) -> bool:
        return self.kind == "FileNotFoundError" and self.code in _ABSENT_OBJECT

    @property
    def is_passing(self) -> bool:
        """Whether a retry may succeed.

        The failed request may have changed the object nevertheless.
        """
        if self.is_builder or self.is_nobody or self.is_redirect or self.is_condition:
            return False
        if self.status is None:
            return self.kind in ("GenericError", "OSError", "JoinError")
        return self.status >= 500 or self.status in _TRY_AGAIN

    @property
    def is_broken(self) -> bool:
        """Whether the connection broke during the response.

        The client retries only some of these failures.
        """
        return self.status is None and self.cause == _BROKEN

    def error(self, address: str, action: str) -> RemoteFailed:
        """The error to raise, with its message. ``action`` is one of get, put, list and delete."""
        scheme = address.partition("://")[0]
        bucket = "/".join(address.split("/")[:3])
        named = _ACTIONS[scheme][action]
        text = " ".join(str(part) for part in (self.status, self.code) if part)
        if self.code in _ABSENT_BUCKET:
            return no_bucket(bucket)
        if self.is_nobody or (self.kind == "UnauthenticatedError" and not self.status):
            return RemoteFailed(
                f"no credentials were found for {named}",
                path=address,
                remedy=f"give credentials in the environment: {_CREDENTIALS[scheme]}",
            )
        if self.is_redirect or self.code in _REGION_CODES:
            return RemoteFailed(
                f"the bucket is in another region ({text or 'a redirect'})",
                path=address,
                remedy="give the region with --config storage.region=NAME, or in AWS_REGION",
            )
        if self.code == "RequestTimeTooSkewed":
            return RemoteFailed(
                f"{named} was refused, because this machine's clock is wrong ({text})",
                path=address,
                remedy="set the clock with NTP, then run the command again",
            )
        if self.is_builder:
            return RemoteFailed(
                "the endpoint is not an https:// address",
                path=address,
                remedy="correct storage.endpoint; for plain http:// add --config "
                "storage.allowHttp=true",
            )
        kinds = ("PermissionDeniedError", "UnauthenticatedError")
        if self.status in (401, 403) or self.code in _WHO_CODES or self.kind in kinds:
            return self._forbidden(address, named, text or self.kind)
        if self.code in _FOLDER_CODES:
            return RemoteFailed(
                f"{named} was refused: an object's name is also the folder of other objects "
                f"({text})",
                path=address,
                remedy="use another prefix, or an empty one: this store stores objects as files",
            )
        if self.status is None:
            return RemoteFailed(
                f"{named} got no answer: {self.cause}",
                path=address,
                remedy="check the network and storage.endpoint, then run the command again; for a "
                "slow connection raise storage.timeoutMs",
            )
        if self.is_passing:
            return RemoteFailed(
                f"{named} was refused at every retry: {text}",
                path=address,
                remedy="run the command again later; storage.retries sets the number of retries",
            )
        return RemoteFailed(
            f"{named} was refused: {text}",
            path=address,
            remedy="check storage.endpoint and the store's log",
        )

    def _forbidden(self, address: str, named: str, said: str) -> RemoteFailed:
        scheme = address.partition("://")[0]
        if self.code in _WHO_CODES or self.status == 401:
            remedy = (
                f"give valid credentials, since these are wrong or expired: {_CREDENTIALS[scheme]}"
            )
        else:
            remedy = f"grant {named} on this address to these credentials"
            if named == "s3:GetObject":
                remedy += (
                    ", and s3:ListBucket, without which S3 also refuses requests for missing "
                    "objects"
                )
        return RemoteFailed(f"{named} is forbidden ({said})", path=address, remedy=remedy)


def no_bucket(address: str) -> RemoteFailed:
    return RemoteFailed(
        "the bucket does not exist",
        path=address,
        remedy="create the bucket, or correct the address or storage.endpoint",
    )


def _cause(text: str) -> str:
    for said, words in (
        ("Connection refused", "the connection was refused"),
        ("dns error", "the host's name is not known"),
        ("TimedOut", "it timed out"),
        ("timed out", "it timed out"),
        ("certificate", "its certificate is not trusted"),
        ("kind: Connect", "no connection"),
        ("ody", _BROKEN),
    ):
        if said in text:
            return words
    return "the connection ended"
