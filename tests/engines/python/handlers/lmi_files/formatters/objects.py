"""An output formatter that uses the attributes of vLLM's response objects, and returns the changed response."""

import json

from djl_python.output_formatter import output_formatter


@output_formatter
def custom_output_formatter(output, **kwargs):
    if isinstance(output, str) and output.startswith("data: "):
        return f"data: {json.dumps({**json.loads(output[6:]), 'by': 'me'})}"
    if hasattr(output, "choices") and output.choices:
        choice = output.choices[0]
        if hasattr(choice, "delta"):
            choice.delta.content = choice.delta.content.upper()
        elif hasattr(choice, "message"):
            choice.message.content = choice.message.content.upper()
        else:
            choice.text = choice.text.upper()
    if hasattr(output, "model_dump"):
        output.by = "me"
    return output
