"""An output formatter that takes four values of `get_next_token`, as LMI returns from 0.32 on."""

import json

from djl_python.output_formatter import TextGenerationOutput, output_formatter


@output_formatter
def custom_output_formatter(request_output: TextGenerationOutput) -> str:
    best = request_output.sequences[request_output.best_sequence_index]
    token, index, is_first, is_last = best.get_next_token()
    after = best.get_next_token()
    return json.dumps([token.text, index, is_first, is_last, after]) + "\n"
