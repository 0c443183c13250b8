"""The ten texts that the golden values of real models are made on. One is longer than a window."""

_LEDGER = "\n".join(
    f"Entry {day}: received {day * 7 % 13 + 2} crates of tea, sold {day * 5 % 11 + 1}, "
    f"stored the rest in room {day % 4 + 1}."
    for day in range(1, 31)
)

TEXTS = (
    "The capital of France is",
    "Once upon a time, in a village by the sea, there lived a fisherman who",
    "def fibonacci(n):\n    if n < 2:\n        return n\n",
    "Question: A train travels 120 km in 2 hours. How fast is it?\nAnswer: The speed is",
    "1, 1, 2, 3, 5, 8, 13, 21,",
    '{"name": "Ada", "born": 1815, "works": ["notes on the analytical engine"',
    "日本の首都は東京です。フランスの首都は",
    "Dear Sir or Madam,\n\nI am writing to ask about the room that you advertised",
    "#include <stdio.h>\n\nint main(void) {\n    for (int i = 0; i < 10; i++)",
    f"The ledger of the tea house, one line for each day of the month:\n{_LEDGER}\nEntry 31:",
)
