"""Parts that both APIs of the platform share: errors as AWS sends them, and resource names."""

from __future__ import annotations

import re


class ApiError(Exception):
    """An error for the client. boto3 derives its exception type from `kind`, or from the status if `kind` is empty."""

    def __init__(self, kind: str, message: str, status: int = 400, **fields: object) -> None:
        super().__init__(message)
        self.kind = kind
        self.status = status
        self.fields = fields

    def body(self) -> dict[str, object]:
        """Return the JSON body, for both protocols."""
        kind = {"__type": self.kind} if self.kind else {}
        return {**kind, "Message": str(self), **self.fields}

    def openai_body(self) -> dict[str, object]:
        """Return the JSON body on an endpoint's OpenAI path."""
        fault = "invalid_request_error" if self.kind == "ValidationError" else "server_error"
        code = re.sub(r"(?<!^)(?=[A-Z])", "_", self.kind).lower()
        return {"error": {"message": str(self), "type": fault, "code": code or None}}


def refused(message: str) -> ApiError:
    """Return the error for a request that the control plane, `sagemaker`, rejects."""
    return ApiError("ValidationException", message)


def runtime_refused(message: str) -> ApiError:
    """Return the error for a request that `sagemaker-runtime` rejects."""
    return ApiError("ValidationError", message)


def arn(kind: str, name: str) -> str:
    """Return the ARN of a `model`, an `endpoint-config` or an `endpoint`."""
    return f"arn:aws:sagemaker:local:000000000000:{kind}/{name.lower()}"
