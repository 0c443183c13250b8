"""Between text and token ids: tokenizers, chat templates, streaming, stop strings."""
