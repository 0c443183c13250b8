"""HTTP: the OpenAI API, health, metrics and the page."""
