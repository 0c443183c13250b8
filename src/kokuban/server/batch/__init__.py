"""Batch files: many requests in one file, answered without a socket.

    in.jsonl    {"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": {…}}
    out.jsonl   {"id": …, "custom_id": "a", "response": {"status_code": 200, …}, "error": null}

The format is OpenAI's. A run that was interrupted goes on where it was: what stands in the output
is done. Neither file is ever held in memory.
"""
