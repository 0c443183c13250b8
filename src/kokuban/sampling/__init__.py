"""How the next token is chosen from the logits: state of each request, and the batch's sampler."""
