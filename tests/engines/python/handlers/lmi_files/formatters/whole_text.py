"""An output formatter that uses the request and every token generated so far."""

import json

from djl_python.output_formatter import RequestOutput, output_formatter


@output_formatter
def custom_output_formatter(request_output: RequestOutput) -> str:
    best = request_output.sequences[request_output.best_sequence_index]
    request = request_output.input
    result = {
        "input": [request.input_text, request.input_ids, request.parameters],
        "num_prompt_tokens": request.prompt_tokens_length(),
        "num_tokens": len(best.tokens),
        "log_prob": best.cumulative_log_prob,
    }
    if request_output.finished:
        result["text"] = "".join(token.text for token in best.tokens)
    if request_output.finished and request_output.other_sequences_indices:
        others = [request_output.sequences[index] for index in request_output.other_sequences_indices]
        result["others"] = [
            ["".join(token.text for token in one.tokens), one.finish_reason, one.cumulative_log_prob]
            for one in others
        ]
    return json.dumps(result) + "\n"
