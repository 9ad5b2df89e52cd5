"""Errors of S3 and of the connection to it, as one sentence that says what to do. They contain no secrets."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from typing import TypeVar

from botocore import exceptions as aws
from botocore.exceptions import BotoCoreError, ClientError
from botocore.parsers import ResponseParserError
from urllib3.exceptions import SSLError
from urllib3.util.ssl_match_hostname import CertificateError

from container.models.errors import AccessRefused, ModelNotAvailable, RemoteUnreachable, shorten
from container.models.files.retry import RetryBudget, Throttled, retry_after_seconds

T = TypeVar("T")
FAILURES = (BotoCoreError, ClientError, ResponseParserError, SSLError)
"""Exceptions that a request may raise. Only while a body is read, TLS errors are urllib3's own."""

_RETRIED = (aws.HTTPClientError, aws.ConnectionError, aws.IncompleteReadError, ResponseParserError, SSLError)
_NO_CREDENTIALS = (
    aws.NoCredentialsError,
    aws.PartialCredentialsError,
    aws.CredentialRetrievalError,
    aws.ProfileNotFound,
    aws.TokenRetrievalError,
    aws.SSOError,
    aws.UnauthorizedSSOTokenError,
)
_CREDENTIALS = (
    "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE, or assign a role to this machine"
)
_THROTTLED = {
    "SlowDown",
    "Throttling",
    "ThrottlingException",
    "RequestLimitExceeded",
    "TooManyRequests",
    "429",
    "503",
}
_EXPIRED = {
    "ExpiredToken",
    "ExpiredTokenException",
    "TokenRefreshRequired",
    "InvalidToken",
    "RequestTimeTooSkewed",
}
_DENIED = {"AccessDenied", "AllAccessDisabled", "AccountProblem", "403", "Forbidden", "401"}
_SENTENCES = {
    "ExpiredToken": "the credentials have expired; renew them",
    "ExpiredTokenException": "the credentials have expired; renew them",
    "TokenRefreshRequired": "the credentials have expired; renew them",
    "InvalidToken": "S3 rejected the session token (AWS_SESSION_TOKEN); renew the credentials",
    "InvalidAccessKeyId": f"S3 rejected the access key (AWS_ACCESS_KEY_ID); {_CREDENTIALS}",
    "SignatureDoesNotMatch": "the secret key (AWS_SECRET_ACCESS_KEY) does not match the access key",
    "RequestTimeTooSkewed": "this machine's clock is more than 15 minutes off; synchronize it",
    "PermanentRedirect": "the bucket is in another region; set AWS_REGION to that region",
    "AuthorizationHeaderMalformed": "the bucket is in another region; set AWS_REGION to that region",
    "IllegalLocationConstraintException": "the bucket is in another region; set AWS_REGION to that region",
    "301": "the bucket is in another region; set AWS_REGION to that region",
    "InvalidBucketName": "the bucket name is not valid; check option.model_id",
    "InvalidObjectState": "the object is archived; restore it first",
    "InvalidRange": "the object is shorter than listed: it was modified or truncated; upload it again",
    "416": "the object is shorter than listed: it was modified or truncated; upload it again",
    "PreconditionFailed": "the object changed while it was read; restart when the upload is complete",
    "412": "the object changed while it was read; restart when the upload is complete",
}


def attempt(
    what: Callable[[], T], budget: RetryBudget, where: str, received: Callable[[], int] = lambda: 0
) -> T:
    """Return the result of a request, which is retried while it fails with a temporary error.

    where: the address in the error message. received: as for `RetryBudget.run`. Raises ModelNotAvailable.
    """

    def request() -> T:
        try:
            return what()
        except FAILURES as error:
            raise model_error(error, where) from error

    return budget.run(request, received)


def is_temporary(error: Exception) -> bool:
    """Return whether the error is temporary."""
    if isinstance(error, ClientError):
        status = _status(error)
        if status == 429 or (status >= 500 and status != 501):  # 501: the server does not know the request
            return True
        return _code(error) in _THROTTLED or _code(error) == "RequestTimeout"
    return isinstance(error, _RETRIED) and not _is_untrusted(error)


def model_error(error: Exception, where: str) -> ModelNotAvailable:
    """Return RemoteUnreachable for a temporary error, AccessRefused for wrong credentials, else ModelNotAvailable.

    The first is Throttled if S3 says how long it refuses requests.
    """
    kind = ModelNotAvailable
    if seconds := _throttle_seconds(error):
        return Throttled(f"{where}: {_reason(error)}", seconds)
    if is_temporary(error):
        kind = RemoteUnreachable
    elif _is_refused(error):
        kind = AccessRefused
    return kind(f"{where}: {_reason(error)}")


def _is_refused(error: Exception) -> bool:
    """Return whether other credentials may help."""
    if isinstance(error, ClientError):
        return _status(error) in (401, 403) or _code(error) in _EXPIRED
    return isinstance(error, _NO_CREDENTIALS)


def _reason(error: Exception) -> str:
    if isinstance(error, ClientError):
        return _status_reason(error)
    if isinstance(error, _NO_CREDENTIALS):
        return f"no usable AWS credentials; {_CREDENTIALS}"
    if isinstance(error, aws.ProxyConnectionError):
        return "the HTTP proxy cannot be reached; check HTTPS_PROXY and NO_PROXY"
    if _is_untrusted(error):
        return "the TLS certificate of S3 is not trusted; set AWS_CA_BUNDLE to the CA certificates"
    endpoint = _endpoint(error)
    if isinstance(error, (aws.SSLError, SSLError)):
        return f"the TLS connection to S3{endpoint} failed repeatedly; check the network and AWS_ENDPOINT_URL"
    if isinstance(error, (aws.ConnectTimeoutError, aws.ReadTimeoutError)):
        return f"S3{endpoint} does not respond in time; check the network, AWS_ENDPOINT_URL and AWS_REGION"
    if isinstance(error, aws.EndpointConnectionError):
        return f"S3{endpoint} cannot be reached; check the network, AWS_ENDPOINT_URL and AWS_REGION"
    if isinstance(error, _RETRIED):
        return "the connection to S3 was lost repeatedly; check the network and try again"
    if isinstance(error, ValueError) and not isinstance(error, BotoCoreError):
        return "the endpoint is not a valid URL; check AWS_ENDPOINT_URL"
    if isinstance(error, aws.InvalidRegionError):
        return f"{shorten(error)}; check AWS_REGION"
    return shorten(error)


def _is_untrusted(error: BaseException | None) -> bool:
    """Return whether the check of the server's certificate or of its host name failed."""
    while error is not None:
        if isinstance(error, (ssl.SSLCertVerificationError, CertificateError)):
            return True
        error = error.__cause__ or error.__context__
    return False


def _status_reason(error: ClientError) -> str:
    """Return the reason for an error status of S3."""
    code, status = _code(error), _status(error)
    if code == "NoSuchBucket":
        return "the bucket does not exist; check option.model_id, AWS_ENDPOINT_URL and AWS_REGION"
    if code in _SENTENCES:
        return _SENTENCES[code]
    if code in ("NoSuchKey", "404") or status == 404:
        return "the object does not exist, or was deleted; check option.model_id, or upload it again"
    if code in _THROTTLED or status in (429, 503):
        seconds = _throttle_seconds(error)
        when = f"retry after {seconds:.0f} s" if seconds else "try again later"
        return f"S3 keeps throttling requests ({code}); {when}"
    if status >= 500:
        return f"S3 keeps returning an internal error ({status}, {code}); try again later"
    if code in _DENIED or status in (401, 403):
        return (
            f"no permission ({status}, {code}): the credentials need s3:ListBucket on the bucket and s3:GetObject on "
            "its objects"
        )
    message = error.response.get("Error", {}).get("Message", "")
    return f"S3 returned {status}, {code}{': ' if message else ''}{shorten(message)}"


def _code(error: ClientError) -> str:
    return str(error.response.get("Error", {}).get("Code", ""))


def _status(error: ClientError) -> int:
    return int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))


def _throttle_seconds(error: Exception) -> float:
    """Return how long S3 refuses requests, if the error says so; else 0."""
    if not isinstance(error, ClientError) or _status(error) not in (429, 503):
        return 0.0
    return retry_after_seconds(error.response.get("ResponseMetadata", {}).get("HTTPHeaders", {}))


def _endpoint(error: Exception) -> str:
    """Return ` at http://host:port` if the error has it, without path and query, which contains a signature."""
    url = str(getattr(error, "kwargs", {}).get("endpoint_url", ""))
    parts = url.split("/")
    return f" at {parts[0]}//{parts[2].rpartition('@')[2]}" if len(parts) > 2 else ""
