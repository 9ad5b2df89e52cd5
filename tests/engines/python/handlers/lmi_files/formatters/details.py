"""An output formatter that writes LMI's records with its own methods of the tokens and the request."""

import json

from djl_python.output_formatter import TextGenerationOutput, output_formatter


@output_formatter
def custom_output_formatter(request_output: TextGenerationOutput) -> str:
    request = request_output.input
    best = request_output.sequences[request_output.best_sequence_index]
    token, _, is_last = best.get_next_token()
    record = {"token": token.as_tgi_dict() if request.tgi_compat else token.as_dict()}
    if is_last:
        record["details"] = {
            "finish_reason": best.finish_reason,
            "stop_reason": best.stop_reason,
            "error": best.get_last_token().error_msg,
            "client": request.client_request_id,
            "length": request.server_parameters["max_new_tokens"],
            "tokens": request_output.get_tokens_as_dict(),
            "prefill": request_output.get_prompt_tokens_as_dict(),
            "top_tokens": request_output.get_top_tokens_as_dict(request_output.best_sequence_index),
            "next_top_tokens": len(best.get_next_top_tokens()),
        }
    return json.dumps(record) + "\n"
