"""The ten texts that the golden values of real models are made on, scored at their last 32 tokens.

They repeat themselves, so that even a small model is sure of most of those tokens: where it is
not, rounding may change its choice and the value says nothing. One is longer than gemma's window.
"""

_POEM = (
    "The lamp burns low beside the window. Rain falls softly on the roof. "
    "A grey cat sleeps upon the chair, and dreams of fish."
)

_BOARD = "黒板には白い文字が並んでいる。先生は窓の外を見て、静かに笑った。"

_LEDGER = "\n".join(
    f"Entry {day}: received {day * 7 % 13 + 2} crates of tea, sold {day * 5 % 11 + 1}, "
    f"stored the rest in room {day % 4 + 1}."
    for day in range(1, 31)
)

_CAPITALS = {
    "France": "Paris",
    "Italy": "Rome",
    "Spain": "Madrid",
    "Germany": "Berlin",
    "Japan": "Tokyo",
    "China": "Beijing",
}

TEXTS = (
    " ".join(f"The capital of {land} is {city}." for land, city in _CAPITALS.items()),
    "\n\n".join([_POEM] * 3),
    "\n".join([_BOARD] * 3),
    "".join(f"def power_{n}(x):\n    return x ** {n}\n\n\n" for n in range(2, 9)),
    "".join(f'{{"id": {i}, "name": "user{i}", "active": true}}\n' for i in range(1, 9)),
    "".join(f"2 x {i} = {2 * i}\n" for i in range(1, 13)),
    "\n".join(f'<li><a href="/page/{i}">Page {i}</a></li>' for i in range(1, 8)),
    "".join(f"SELECT id, name FROM users WHERE id = {i};\n" for i in range(1, 8)),
    "".join(f"Q: What is {i} + {i}?\nA: {2 * i}\n" for i in range(2, 9)),
    f"The ledger of the tea house, one line for each day of the month:\n{_LEDGER}",
)
