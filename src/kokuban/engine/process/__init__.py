"""The engine in a process of its own, reached over ZeroMQ: `kokuban serve --engine process`.

    server process                                 engine process
    ProcessClient  ◀─ Supervisor ─ ChildProcess ═══ child.main ─▶ Service ─▶ EngineThread
      event loops     one I/O thread          ipc     one I/O thread           engine thread

What crosses is data only (`wire`): requests, answers, token events, numbers, errors. A step is one
message, whatever the number of its requests. The server process holds tokenizer and template, the
engine process weights, KV and scheduler.
"""
