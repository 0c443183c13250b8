"""OpenAI's Responses API: a conversation that the server can remember, told in items and events.

request.py     what a client sends
items.py       what a conversation consists of, as it came and as it is kept
tools.py       tools of all kinds, as functions that a model is told about
messages.py    from items to the messages that chat templates know
prepare.py     all of these together: a request becomes a turn
bodies.py      what is sent: responses and their items
events.py      what is sent while they grow
assembly.py    from parts of an answer to items and events
form.py        an answer's shape, whole and streamed
store.py       remembers responses, within a limit
event_log.py   the events of a response that nobody waits for
background.py  runs responses that nobody waits for
replay.py      shows the events of those, to whoever comes and goes
routes.py      the paths
"""
