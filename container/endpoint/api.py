"""What both APIs of the platform share: errors as AWS sends them, and names of resources."""

from __future__ import annotations


class ApiError(Exception):
    """An error for the client. boto3 raises its typed exception from `kind`, or from the status where it is empty."""

    def __init__(self, kind: str, message: str, status: int = 400, **fields: object) -> None:
        super().__init__(message)
        self.kind = kind
        self.status = status
        self.fields = fields

    def body(self) -> dict[str, object]:
        """The JSON body, for both protocols."""
        kind = {"__type": self.kind} if self.kind else {}
        return {**kind, "Message": str(self), **self.fields}


def refused(message: str) -> ApiError:
    """A request that the control plane, `sagemaker`, does not accept."""
    return ApiError("ValidationException", message)


def runtime_refused(message: str) -> ApiError:
    """A request that `sagemaker-runtime` does not accept."""
    return ApiError("ValidationError", message)


def arn(kind: str, name: str) -> str:
    """The resource name of a `model`, an `endpoint-config` or an `endpoint`."""
    return f"arn:aws:sagemaker:local:000000000000:{kind}/{name.lower()}"
