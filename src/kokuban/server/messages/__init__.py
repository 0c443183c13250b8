"""Anthropic's Messages API: conversations, answers and errors in its shapes.

A body becomes a `ChatRequest`, as that of every chat-like API (`server/turn.py`); what comes back
is shown in blocks. docs/decisions/0029 says what the translation keeps and what it changes.
"""
