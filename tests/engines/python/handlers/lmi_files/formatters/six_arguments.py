"""An output formatter in the style of LMI before 0.28: six arguments, called for each token."""

import json

from djl_python.output_formatter import output_formatter


@output_formatter
def custom_output_formatter(token, first_token, last_token, details, generated_text, id):  # noqa: A002
    result = {
        "token": token.as_dict(),
        "first": first_token,
        "last": last_token,
        "text": generated_text,
        "id": id,
    }
    return json.dumps({**result, "details": details}) + "\n"
