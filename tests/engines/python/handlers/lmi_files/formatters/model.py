"""Input and output formatters without a handler, in the style of LMI's documentation. The server generates the text."""

from djl_python.input_parser import input_formatter
from djl_python.output_formatter import output_formatter


@input_formatter
def custom_input_formatter(decoded_payload: dict, tokenizer=None, **kwargs) -> dict:
    if "inputPrompt" in decoded_payload:
        decoded_payload["inputs"] = decoded_payload.pop("inputPrompt")
    decoded_payload.setdefault("parameters", {}).setdefault("max_new_tokens", 3)
    return decoded_payload


@output_formatter
def custom_output_formatter(response_data: dict) -> dict:
    return {"mine": response_data}
